"""One GPU, measured in at most 25 minutes, without Ray and MLflow."""
