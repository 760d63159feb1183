"""Cells as trials of Ray Tune."""
