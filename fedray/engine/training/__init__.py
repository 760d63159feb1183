"""Local training of one client: its batches, its steps, and steps recorded as CUDA graphs."""
