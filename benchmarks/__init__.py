"""Speed of fedray, always as a ratio taken within one run: `python -m benchmarks.overhead --workload w2`.

`results/` holds the measurements, from which `python -m benchmarks.table` makes docs/performance.md.
"""
