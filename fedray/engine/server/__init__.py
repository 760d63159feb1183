"""The server's part of a round: draw a cohort, aggregate its replies, commit, test, probe and record."""
