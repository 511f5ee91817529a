"""Experiments with kernels that are not in the library."""
