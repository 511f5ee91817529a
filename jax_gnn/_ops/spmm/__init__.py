"""Products with sparse matrices, made of the primitives of segments."""
