"""The command line, `fedray`."""
