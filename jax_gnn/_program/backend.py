"""The backend, what computes a program, and other settings on which its plans depend."""

from __future__ import annotations

import jax

from jax_gnn._core.public import chosen_implementation
from jax_gnn._ops.edge_region import cuda_compile


def backend() -> str:
    """Return what computes regions: ``"cuda"``, ``"xla"`` without linear maps, ``"cpu"`` nothing.

    On a CPU no regions are formed. ``implementation="xla"`` forms them in plain XLA everywhere.
    """
    default = {"cpu": "cpu", "gpu": "cuda"}.get(jax.default_backend(), "xla")
    chosen: str = chosen_implementation.value or default
    has_maps = chosen != "cuda" or cuda_compile.supports_linear_maps()
    return chosen if has_maps else "xla"


def settings() -> tuple[str, str | None, bool]:
    """Return the backend and the settings of JAX that plans depend on."""
    return backend(), jax.default_matmul_precision.value, jax.enable_x64.value
