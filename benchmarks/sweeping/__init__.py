"""Costs of a sweep besides its cells' work: its start, each cell, memory, the store it writes to."""
