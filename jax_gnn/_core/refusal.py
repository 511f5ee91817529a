"""Another distribution, ``jax-gnn``, has an import package of this one's name."""

from __future__ import annotations

import sys
from pathlib import Path

ITS_FILES = Path("nn/conv/gcn.py"), Path("utils/jax_utils.py")  # which this package does not have


def refuse(folder: Path, program: str | None = None) -> None:
    """Raises where the files of both lie in one folder, of which pip does not warn.

    Whichever came last has overwritten the other's ``__init__.py``.

    Args:
        folder: of the package.
        program: what runs; the command ``jax-gnn`` ends with the message alone.

    Raises:
        ImportError: they do. SystemExit in the command.
    """
    if not any((folder / file).exists() for file in ITS_FILES):
        return
    message = (
        f"{folder} has files of another package, jax-gnn on PyPI, beside those of jax-gnn-kernels; "
        "run: pip uninstall -y jax-gnn jax-gnn-kernels && pip install jax-gnn-kernels"
    )
    if Path(program or sys.argv[0]).name == "jax-gnn":
        raise SystemExit(f"jax-gnn: error: {message}")
    raise ImportError(message)
