"""The softmax over segments."""
