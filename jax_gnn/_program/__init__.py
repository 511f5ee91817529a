"""Programs of messages: written for one edge, traced, rewritten and lowered to this library's ops."""
