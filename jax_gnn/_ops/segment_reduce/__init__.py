"""Reductions of entries into rows: the basis of segment ops and sparse products.

One index structure, :class:`jax_gnn._core.csr.SparseMatrix`, and a few primitives on ``(rows,
features)`` arrays, closed under differentiation.
"""
