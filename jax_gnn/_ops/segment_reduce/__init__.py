"""Reductions of entries into rows: what segment ops and sparse products are made of.

One index structure, :class:`jax_gnn._core.csr.SparseMatrix`, and a few primitives on ``(rows,
features)`` arrays, closed under differentiation.
"""
