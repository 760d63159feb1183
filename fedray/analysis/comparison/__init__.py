"""Paired differences between methods, aggregates over all settings and ranks, for `fedray compare` and others."""
