"""The batch gradients that a run's training has cost, from its split in the store."""

import io
import json
import math
from collections import Counter

import numpy as np
import pandas as pd

from fedray.analysis.data.axes import FINISHED
from fedray.analysis.data.collect import SweepTable, list_plugins, parse
from fedray.engine.server.sampling import draw_cohort
from fedray.sweep.plan.draws import count_of_client


def count_gradients(sweep: SweepTable) -> pd.Series:
    """Return the batch gradients of each finished run's training, a forward pass counting as a third.

    The cohorts and shards are the real ones; the passes of a local step are measured (`engine.cost`). NaN for a
    run without its split in the store, and for a class of yours, which a store only names.
    """
    cells, counts, trained = sweep.cells, list[float](), dict[str, Counter[int]]()
    for spec, run_id, status in zip(cells["spec"], cells["run_id"], cells["status"], strict=True):
        drawn = json.dumps([spec.get(key) for key in ("seed", "data", "partition", "clients", "training.rounds")])
        if status not in FINISHED or list_plugins(spec.config):
            counts.append(math.nan)
            continue
        if drawn not in trained:  # methods of a setting and seed share their cohorts
            trained[drawn] = Counter()
            if (dealt := _read_sizes(sweep, str(run_id))) is not None:
                run = parse(spec, "gradients")
                cohorts = (draw_cohort(run, dealt, t) for t in range(run.training.rounds))
                trained[drawn].update(int(dealt[i]) for cohort in cohorts for i in cohort)
        sizes = trained[drawn].items()
        counts.append(sum(n * count_of_client(parse(spec, "gradients"), size) for size, n in sizes) or math.nan)
    return pd.Series(counts, cells.index, dtype=float)


def _read_sizes(sweep: SweepTable, run_id: str) -> np.ndarray | None:
    """Return the training samples of each client of a run; None without an intact split in the store."""
    content = sweep.read_artefact(run_id, "partition.npz")
    try:
        return None if content is None else np.diff(np.load(io.BytesIO(content), allow_pickle=False)["train_offsets"])
    except Exception:  # zipfile, zlib and NumPy raise their own types for damaged files
        return None
