"""The batch gradients that a run's training has cost, from its split in the store."""

import io
import json
import math
from collections import Counter

import numpy as np
import pandas as pd

from fedray.analysis.data.axes import FINISHED
from fedray.analysis.data.collect import Collected, SweepTable, iter_specs, list_plugins, parse
from fedray.cells.spec import CellSpec
from fedray.engine.server.sampling import draw_cohort
from fedray.sweep.plan.draws import count_of_client


def count_gradients(sweep: SweepTable) -> pd.Series:
    """Return the batch gradients of each finished run's training, a forward pass counting as a third.

    The cohorts and shards are the real ones; the passes of a local step are measured (`engine.cost`). NaN for a
    run without its split in the store, and for a class of yours, which a store only names.
    """
    cells, counts, trained = sweep.cells, list[float](), dict[str, Counter[int]]()
    for spec, run_id, status in zip(iter_specs(cells), cells["run_id"], cells["status"], strict=True):
        drawn = json.dumps([spec.get(key) for key in ("seed", "data", "partition", "clients", "training.rounds")])
        if status not in FINISHED or list_plugins(spec.config):
            counts.append(math.nan)
            continue
        if drawn not in trained:  # methods of a setting and seed share their cohorts
            trained[drawn] = _count_trained(spec, _read_sizes(sweep, str(run_id)))
        sizes = trained[drawn].items()
        counts.append(sum(n * count_of_client(parse(spec, "gradients"), size) for size, n in sizes) or math.nan)
    return pd.Series(counts, cells.index, dtype=float)


def _read_sizes(sweep: SweepTable, run_id: str) -> np.ndarray | None:
    """Return the training samples of each client of a run; None without an intact split in the store."""
    content = sweep.read_artefact(run_id, "partition.npz") if isinstance(sweep, Collected) else None
    try:
        return None if content is None else np.diff(np.load(io.BytesIO(content), allow_pickle=False)["train_offsets"])
    except Exception:  # zipfile, zlib and NumPy raise their own types for damaged files
        return None


def _count_trained(spec: CellSpec, sizes: np.ndarray | None) -> Counter[int]:
    """Return how often clients of each size train in all rounds together; empty if the sizes are not known."""
    if sizes is None:
        return Counter()
    run = parse(spec, "gradients")
    return Counter(int(sizes[i]) for t in range(run.training.rounds) for i in draw_cohort(run, sizes, t))
