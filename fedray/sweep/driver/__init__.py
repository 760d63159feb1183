"""The commands on a sweep: run it, estimate it, verify it, remove what it left."""
