"""The cells that follow from a sweep's file, and what they will cost."""
