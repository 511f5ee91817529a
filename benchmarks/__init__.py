"""Benchmarks of every op against its floor and its peers: ``python -m benchmarks --help``."""

import os
import sys
from pathlib import Path

# ``python -m`` puts the checkout first on the path, where its sources would hide an installed
# jax_gnn with its compiled modules. Last, they still serve where nothing is installed. A checkout
# that PYTHONPATH names stays first: its modules are compiled, and they are to be timed.
_checkout = str(Path(__file__).parents[1])
_named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if not any(entry and os.path.abspath(entry) == _checkout for entry in _named):
    sys.path = [*(entry for entry in sys.path if entry != _checkout), _checkout]
