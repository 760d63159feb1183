"""Rules for names that end up in paths, queries and tables, as patterns that Python and pydantic both read."""

SWEEP = r"^\w[\w.-]*(/\w[\w.-]*)*$"
"""A sweep's name: words of letters, digits and `_ - .`, joined by `/`; no word begins with a dot."""
METRIC = r"^[\w.:/ -]+$"
"""A metric's name, as MLflow takes it."""
LISTS = {"algorithm": "algorithms", "model": "models", "data": "datasets", "partition": "partitions"}
"""Section of a configuration -> the argument of `fedray list` that lists its names."""
