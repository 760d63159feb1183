"""Metrics and probes: what is computed of trained models, of a cohort, and of its local training."""
