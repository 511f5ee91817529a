"""Has the CUDA module of jax-gnn-kernels."""
