"""MLflow's store: written by one tracker, read by queries, exchanged as archives."""
