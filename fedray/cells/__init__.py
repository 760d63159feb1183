"""Record of a run, in one form for the engine's callers, MLflow, archives and analysis."""
