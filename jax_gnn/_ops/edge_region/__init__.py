"""A nonlinear function of each edge between gathers and reductions, in one pass."""
