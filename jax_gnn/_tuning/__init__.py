"""Search for the fastest schedules of kernels on this machine's GPU: ``jax-gnn tune``."""
