"""The systems that are compared: each a process of its own that makes a round when it is told to (`protocol`)."""
