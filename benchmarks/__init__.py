"""Benchmarks of every op against its floor and its peers: ``python -m benchmarks --help``."""

import sys
from pathlib import Path

# ``python -m`` puts the checkout first on the path, where its sources would hide an installed
# jax_gnn with its compiled modules. Last, they still serve where nothing is installed.
_checkout = str(Path(__file__).parents[1])
sys.path = [*(entry for entry in sys.path if entry != _checkout), _checkout]
