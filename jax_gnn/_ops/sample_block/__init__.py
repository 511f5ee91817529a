"""Draws of edges among those of each node, and blocks of the drawn edges."""
