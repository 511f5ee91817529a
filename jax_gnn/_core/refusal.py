"""Errors of a package that cannot work: one line, of the import or of the command.

It imports the standard library alone: `flax_layers` runs this file before it imports `jax_gnn`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

OLDEST_JAX = (0, 10)
STRANGERS_FILES = Path("nn/conv/gcn.py"), Path("utils/jax_utils.py")
"""Files of another distribution, ``jax-gnn``, whose import package has this one's name."""


def refuse(message: str) -> NoReturn:
    """End the import with a message.

    Raises:
        ImportError: always; in the command ``jax-gnn`` SystemExit, which prints one line.
    """
    if Path(sys.argv[0]).name == "jax-gnn":
        raise SystemExit(f"jax-gnn: error: {message}")
    raise ImportError(message)


def refuse_stranger(folder: Path) -> None:
    """Refuse a package folder that the distribution ``jax-gnn`` shares, or shared.

    pip does not warn when one of the two overwrites files of the other, nor when uninstalling one
    removes ``__init__.py`` of the other.
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
    """Refuse a JAX that lacks interfaces that ops need."""
    if tuple(map(int, version.split(".")[:2])) < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        refuse(
            f"jax_gnn needs jax {oldest} or later, not {version}; run: pip install --upgrade jax"
        )
