"""Ops: a folder for each, see docs/architecture.md."""

from jax_gnn._core.public import use_implementation as use_implementation
