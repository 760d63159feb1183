"""The compared systems: each is a process of its own that makes a round on request (`protocol`)."""
