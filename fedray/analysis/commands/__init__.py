"""The commands: `main` of each module is `fedray NAME`, and `python -m analysis.NAME`."""
