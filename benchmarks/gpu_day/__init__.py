"""One GPU, measured in three calls of at most 9 minutes, without Ray and MLflow."""
