"""What ops are made of: records and primitives, sparse matrices, arguments, schedules."""
