"""Settings of trainings: each field holds its default, its help text and its range of values."""
