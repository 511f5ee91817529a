"""The examples of the public names' docstrings, run as doctests."""

from __future__ import annotations

import doctest
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import flax_layers
import jax_gnn
from jax_gnn import convert, sampling, sharding, transforms
from jax_gnn.extend import row_matmul, source_pair_rows

PUBLIC = {
    name: getattr(module, name)
    for module in (jax_gnn, flax_layers, sampling, sharding, transforms)
    for name in module.__all__
}
PUBLIC |= {"row_matmul": row_matmul, "source_pair_rows": source_pair_rows}
PUBLIC |= {"Data": convert.Data, "from_table": convert.from_table}
# Names without an example: constants, results and options of functions, and a base class.
WITHOUT = {
    "EXPORT_CHECKS",
    "__version__",
    "AttentionOptions",
    "Derived",
    "Edge",
    "Global",
    "HypergraphNorm",
    "Lifted",
    "LinearOptions",
    "Node",
    "NodeType",
    "Program",
    "Relation",
    "Stack",
}


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - WITHOUT))
def test_example(name: str) -> None:
    names = {
        **vars(convert),
        **PUBLIC,
        "jax": jax,
        "jax_gnn": jax_gnn,
        "jnp": jnp,
        "nnx": nnx,
        "np": np,
    }
    text = inspect.getdoc(PUBLIC[name])
    example = doctest.DocTestParser().get_doctest(text or "", names, name, None, None)
    assert example.examples, f"the docstring of {name} has no example"
    report: list[str] = []
    # Printed values are those of a CPU; GPUs round products.
    with jax.default_device(jax.devices("cpu")[0]):
        failed, _ = doctest.DocTestRunner().run(example, out=report.append)
    assert not failed, "".join(report)
