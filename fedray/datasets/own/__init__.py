"""Data of your own: pictures in folders, tables."""
