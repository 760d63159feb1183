"""The networks, by family."""
