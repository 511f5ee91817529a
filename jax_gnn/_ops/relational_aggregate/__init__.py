"""Sums of products by relation over typed edges."""
