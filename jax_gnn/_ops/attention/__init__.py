"""Attention over the edges into each destination."""
