"""From MLflow to rows and frames, and what their columns are called."""
