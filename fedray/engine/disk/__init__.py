"""A run on disk: its checkpoints, its clients' states and its rows."""
