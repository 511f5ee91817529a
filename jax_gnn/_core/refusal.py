"""What makes this package unusable is told in one line: the import's error, or the command's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

OLDEST_JAX = (0, 10)
STRANGERS_FILES = Path("nn/conv/gcn.py"), Path("utils/jax_utils.py")
"""Of another distribution, ``jax-gnn``, whose import package has this one's name."""


def refuse(message: str) -> NoReturn:
    """Ends the import with what is wrong and what to do.

    Raises:
        ImportError: always. SystemExit in the command ``jax-gnn``, which ends with one line.
    """
    if Path(sys.argv[0]).name == "jax-gnn":
        raise SystemExit(f"jax-gnn: error: {message}")
    raise ImportError(message)


def refuse_stranger(folder: Path) -> None:
    """Refuses a folder that has files of both distributions, of which pip does not warn.

    Whichever came last has overwritten the other's ``__init__.py``.
    """
    if any((folder / file).exists() for file in STRANGERS_FILES):
        refuse(
            f"{folder} has files of another package, jax-gnn on PyPI, beside those of "
            "jax-gnn-kernels; run: pip uninstall -y jax-gnn jax-gnn-kernels && "
            "pip install jax-gnn-kernels"
        )


def refuse_old_jax(version: str) -> None:
    """Refuses a JAX that lacks what ops are made of."""
    if tuple(map(int, version.split(".")[:2])) < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        refuse(
            f"jax_gnn needs jax {oldest} or later, not {version}; run: pip install --upgrade jax"
        )
