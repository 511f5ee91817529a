"""The stable order of ids: a sort by a kernel that reads only the bits that ids have."""
