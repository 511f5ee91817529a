"""What ops are made of: records and primitives, sparse matrices, arguments, schedules."""

from pathlib import Path

from jax_gnn._core.stranger import refuse

refuse(Path(__file__).parents[1])
