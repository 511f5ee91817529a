"""Checks of what is installed, before the import of jax_gnn; and the command ``jax-gnn``.

PyPI's ``jax-gnn`` is another project, which may have replaced or removed ``jax_gnn/__init__.py``.
So these checks cannot be part of `jax_gnn` alone.
"""

from __future__ import annotations

import importlib.util
import runpy
from importlib import metadata
from pathlib import Path

import jax

_spec = importlib.util.find_spec("jax_gnn")
_locations = (_spec and _spec.submodule_search_locations) or ["jax_gnn"]
_folders = [Path(location) for location in _locations]
# Of an editable installation, the first folder may have the compiled modules alone.
_folder = next((f for f in _folders if (f / "_core" / "refusal.py").exists()), _folders[0])
_refusal = runpy.run_path(str(_folder / "_core" / "refusal.py"))
_refusal["refuse_stranger"](_folder)
_refusal["refuse_old_jax"](jax.__version__)

try:
    from flax import nnx
except ModuleNotFoundError:
    raise
except (AttributeError, ImportError) as error:  # flax bounds JAX from below alone
    _refusal["refuse"](
        f"flax {metadata.version('flax')} cannot be imported with jax {jax.__version__}: {error}; "
        "run: pip install --upgrade flax"
    )

__all__ = ["main", "nnx"]


def main() -> int:
    """Run the command line: see `jax_gnn.cli.main`."""
    from jax_gnn import cli

    return cli.main()
