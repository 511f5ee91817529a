"""Benchmarks of every op against its floor and its peers: ``python -m benchmarks --help``."""
