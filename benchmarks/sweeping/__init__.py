"""What a sweep costs beside its cells: its start, each cell, memory, the store it writes to."""
