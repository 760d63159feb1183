"""From MLflow to rows and frames, and labels of their columns."""
