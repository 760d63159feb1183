"""How fast it is, always as a ratio taken within one run: `python -m tests.benchmarks.overhead --workload w2`.

Results are kept in docs/performance.md, each with its command, commit, machine and versions.
"""
