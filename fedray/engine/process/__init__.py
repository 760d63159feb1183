"""What one process does with its clients: train, test, and reduce their results before it replies."""
