"""Edges sorted by both ends, and their (node, relation) pairs."""
