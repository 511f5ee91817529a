"""Ops: a folder for each, see docs/architecture.md."""
