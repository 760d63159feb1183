"""Figures of a sweep's metrics, comparisons and searches."""
