"""A sweep as one file: its cells with settings, curves, artefacts and hashes, to be merged into another store.

The file is a zip: `sweep.json` (the sweep's name, description and cells), and for each cell that has a run
`runs/CELL/run.json` (status, tags, parameters, metrics with all their steps) and `runs/CELL/artifacts/...`. A run's
split (`partition.npz` and its picture) is `splits/SHA256` instead, once for all runs that share it, and so is its
environment, `environments/HASH.json`. A sweep that tunes takes its tune stage along (`tune` in `sweep.json`).
`sweep.yaml` is the sweep's file. A deposit also has members for readers (`fedray.analysis.deposit`), which an import
passes over.
"""
