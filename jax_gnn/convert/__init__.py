"""Conversions: graphs of other packages, sparse matrices and tables, to :class:`Data` and back.

``from_NAME`` reads an object of the package of that name, ``to_NAME`` makes one. The packages are
not dependencies: each is imported on use, and the error for a missing one says how to install it.
Round trips keep all that the other package can hold; docstrings name what it cannot.

All conversions raise ``ImportError`` for a missing package, ``TypeError`` for an argument of
another type or values without names, and ``ValueError`` for graphs that the other side cannot hold,
ids out of range, names that are missing or repeated, and wrong numbers of values.
"""

from jax_gnn.convert._data import Data
from jax_gnn.convert._dgl import from_dgl, to_dgl
from jax_gnn.convert._hypergraphs import from_dhg, from_hypernetx, to_dhg, to_hypernetx
from jax_gnn.convert._jraph import from_jraph, to_jraph
from jax_gnn.convert._networkx import from_networkx, to_networkx
from jax_gnn.convert._pyg import from_pyg, to_pyg
from jax_gnn.convert._relbench import from_relbench
from jax_gnn.convert._sparse import from_bcoo, from_bcsr, from_scipy, to_bcoo, to_bcsr, to_scipy
from jax_gnn.convert._table import from_table, to_table

__all__ = [
    "Data",
    "from_bcoo",
    "from_bcsr",
    "from_dgl",
    "from_dhg",
    "from_hypernetx",
    "from_jraph",
    "from_networkx",
    "from_pyg",
    "from_relbench",
    "from_scipy",
    "from_table",
    "to_bcoo",
    "to_bcsr",
    "to_dgl",
    "to_dhg",
    "to_hypernetx",
    "to_jraph",
    "to_networkx",
    "to_pyg",
    "to_scipy",
    "to_table",
]
