"""Kinds of dtypes in annotations of arrays with shapes: ``Float[Array, "num_dst *features"]``.

The notation is jaxtyping's. What follows the type is for readers: type checkers see the type, and
nothing is checked at run time.
"""

from __future__ import annotations

from typing import Annotated as Float
from typing import Annotated as Inexact
from typing import Annotated as Int
from typing import Annotated as Integer
from typing import Annotated as Num
from typing import Annotated as Real
from typing import Annotated as Shaped

__all__ = ["Float", "Inexact", "Int", "Integer", "Num", "Real", "Shaped"]
