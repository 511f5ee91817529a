"""Ops: a folder for each, see docs/architecture.md."""

from __future__ import annotations

from contextlib import AbstractContextManager

from jax_gnn._core import ffi


def use_implementation(name: str | None) -> AbstractContextManager[None]:
    """Select the implementation of ops in a ``with`` block; None keeps that of the outer block."""
    return ffi.chosen_implementation(name or ffi.chosen_implementation.value)
