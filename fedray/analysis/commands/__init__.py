"""Commands of analysis: `main` of each module is `fedray NAME`, and `python -m analysis.NAME`."""
