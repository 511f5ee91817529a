"""What layers are made of beside the public ops: for code that extends this library.

``flax_layers`` imports nothing of ``jax_gnn`` but public names, of which these are some. They are
documented where they are defined, and tested, but may change from one minor version to the next:

* checks of arguments, whose messages name the argument and what was given;
* arrays by rows and heads; ids, and sums of rows by ids;
* loading of data of any kind;
* choices that counts of a relational graph make.
"""

from jax_gnn._any_data import known_formats, load_any
from jax_gnn._core.arguments import (
    as_array,
    as_ids,
    check_callable,
    check_choice,
    check_columns,
    check_distinct,
    check_finite,
    check_flag,
    check_instance,
    check_integer,
    check_number,
    check_range,
    check_real,
    described,
    is_real,
    numbers_by_name,
    to_numpy,
)
from jax_gnn._core.arrays import STATIC, accumulator_dtype, feature_wise, promoted, row_wise, take
from jax_gnn._core.csr import segments
from jax_gnn._core.ffi import Implementation, status
from jax_gnn._core.ids import at_most, in_range, row_starts
from jax_gnn._core.op import gradients_at_once
from jax_gnn._ops.hypergraph_aggregate.api import Normalization, Reduce, Side
from jax_gnn._ops.relational_aggregate.api import counts_of, of_relations
from jax_gnn._ops.relational_aggregate.schedule import blocks_pay, sums_by_basis_pay
from jax_gnn._ops.relational_attention.api import METHODS, Method
from jax_gnn._ops.relational_attention.methods import choose_method
from jax_gnn._ops.relational_attention.weights import RelationMaps
from jax_gnn._ops.segment_matmul.api import is_tall
from jax_gnn._ops.segment_reduce.primitive import gather, total

__all__ = [
    "METHODS",
    "STATIC",
    "Implementation",
    "Method",
    "Normalization",
    "Reduce",
    "RelationMaps",
    "Side",
    "accumulator_dtype",
    "as_array",
    "as_ids",
    "at_most",
    "blocks_pay",
    "check_callable",
    "check_choice",
    "check_columns",
    "check_distinct",
    "check_finite",
    "check_flag",
    "check_instance",
    "check_integer",
    "check_number",
    "check_range",
    "check_real",
    "choose_method",
    "counts_of",
    "described",
    "feature_wise",
    "gather",
    "gradients_at_once",
    "in_range",
    "is_real",
    "is_tall",
    "known_formats",
    "load_any",
    "numbers_by_name",
    "of_relations",
    "promoted",
    "row_starts",
    "row_wise",
    "segments",
    "status",
    "sums_by_basis_pay",
    "take",
    "to_numpy",
    "total",
]
