"""Refusals of a package that cannot work: one line, as the import's error or the command's.

Imports the standard library alone: `flax_layers` runs this file before it imports `jax_gnn`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

OLDEST_JAX = (0, 10)
STRANGERS_FILES = Path("nn/conv/gcn.py"), Path("utils/jax_utils.py")
"""Files of another distribution, ``jax-gnn``, whose import package has this one's name."""


def refuse(message: str) -> NoReturn:
    """Ends the import with what is wrong and what to do.

    Raises:
        ImportError: always. SystemExit in the command ``jax-gnn``, which ends with one line.
    """
    if Path(sys.argv[0]).name == "jax-gnn":
        raise SystemExit(f"jax-gnn: error: {message}")
    raise ImportError(message)


def refuse_stranger(folder: Path) -> None:
    """Refuses a package folder that the distribution ``jax-gnn`` shares, or shared.

    pip warns neither when one of the two overwrites files of the other, nor when it uninstalls one
    and so removes ``__init__.py`` of the other.
    """
    if any((folder / file).exists() for file in STRANGERS_FILES):
        problem = "has files of another package, jax-gnn on PyPI, beside those of jax-gnn-kernels"
    elif not (folder / "__init__.py").exists():
        problem = (
            "has no __init__.py: uninstalling another package of the same name, such as jax-gnn on "
            "PyPI, removed files of jax-gnn-kernels"
        )
    else:
        return
    refuse(
        f"{folder} {problem}; run: pip uninstall -y jax-gnn jax-gnn-kernels && "
        "pip install jax-gnn-kernels"
    )


def refuse_old_jax(version: str) -> None:
    """Refuses a JAX that lacks what ops are made of."""
    if tuple(map(int, version.split(".")[:2])) < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        refuse(
            f"jax_gnn needs jax {oldest} or later, not {version}; run: pip install --upgrade jax"
        )
