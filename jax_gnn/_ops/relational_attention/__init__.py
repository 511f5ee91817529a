"""Attention over the edges of graphs with relations, of RGAT and HGT."""
