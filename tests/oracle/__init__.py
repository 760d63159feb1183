"""An independent oracle: every method once more, naively, in NumPy float64. Shares no code with `fedray`."""
