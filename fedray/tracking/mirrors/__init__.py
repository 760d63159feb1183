"""Copies of tracked runs for other tools."""
