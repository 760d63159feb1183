"""How fast fedray is, always as a ratio taken within one run: `python -m benchmarks.overhead --workload w2`.

`results/` holds what was measured, and `python -m benchmarks.table` makes docs/performance.md from it.
"""
