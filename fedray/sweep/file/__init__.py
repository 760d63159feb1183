"""A sweep as its file says it."""
