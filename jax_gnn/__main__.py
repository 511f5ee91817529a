"""``python -m jax_gnn``: the same as ``jax-gnn``."""

import sys

from jax_gnn.cli import main

sys.exit(main())
