"""Programs of messages: written for one edge, rewritten, and lowered to this library's ops."""
