"""Sweeps: what a file says, the cells that follow from it, and their runs under Ray Tune."""
