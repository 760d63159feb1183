"""Figures of comparisons and searches; those of a sweep's metrics are in `analysis.figures`."""
