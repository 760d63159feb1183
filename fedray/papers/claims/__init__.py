"""Reads claims, decides them on the runs of a store, and shows the decisions; `analysis.claims` is the command."""
