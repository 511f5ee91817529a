"""Parts of layers beside the public ops, for layers written outside of this library, too.

`flax_layers` imports only public names of `jax_gnn`, of which these are some. They are documented
where they are defined, and tested, but may change from one minor version to the next:

- checks of arguments, whose errors name the argument and its value;
- arrays: conversion, gathers of rows, axes for broadcasting, the dtype of accumulators;
- products of rows, rows of (source, relation) pairs, and types of arguments of ops.
"""

from jax_gnn._core.arguments import (
    as_array,
    as_ids,
    check_callable,
    check_choice,
    check_finite,
    check_flag,
    check_instance,
    check_integer,
    check_number,
    check_real,
    described,
)
from jax_gnn._core.arrays import accumulator_dtype, feature_wise, row_wise, take
from jax_gnn._core.public import Implementation
from jax_gnn._ops.hypergraph_aggregate.api import Normalization, Side
from jax_gnn._ops.relational_aggregate.api import source_pair_rows
from jax_gnn._ops.segment_matmul.api import row_matmul

__all__ = [
    "Implementation",
    "Normalization",
    "Side",
    "accumulator_dtype",
    "as_array",
    "as_ids",
    "check_callable",
    "check_choice",
    "check_finite",
    "check_flag",
    "check_instance",
    "check_integer",
    "check_number",
    "check_real",
    "described",
    "feature_wise",
    "row_matmul",
    "row_wise",
    "source_pair_rows",
    "take",
]
