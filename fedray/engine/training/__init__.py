"""Local training of one client: its batches and its steps."""
