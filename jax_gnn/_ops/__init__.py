"""The ops, a folder each: public functions (``api``), the primitive and its rules, plain XLA."""
