"""Finds the fastest schedules on the GPU at hand: ``jax-gnn tune``."""
