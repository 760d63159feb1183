"""One GPU, measured in three calls of at most 8 minutes, without Ray and MLflow."""
