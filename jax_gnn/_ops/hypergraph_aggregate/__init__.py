"""Features of nodes to hyperedges and back to nodes."""
