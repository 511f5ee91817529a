"""Records of ops, sparse matrices, argument checks and schedules, of which ops are built."""

from pathlib import Path

import jax

from jax_gnn._core.refusal import refuse_old_jax, refuse_stranger

refuse_stranger(Path(__file__).parents[1])
refuse_old_jax(jax.__version__)
