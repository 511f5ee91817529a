"""Products of rows, sorted by group, with a matrix for each group."""
