"""Actors on Ray: where they run, what they share, and how a call connects to a cluster."""
