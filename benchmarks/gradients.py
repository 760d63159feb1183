"""Seconds of one gradient of each model in the papers' sweeps, on random data of the same shape, one core.

`python -m benchmarks.gradients` measures what `results/gradients.json` lacks (`--again`: everything) and writes it;
`python -m docs.generate.costs` then enters core-hours in docs/papers.md and docs/sweeps.md. A time is processor time;
other work on the machine still lengthens it, so the file notes the load.
"""

import json
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.pairs import machine
from fedray.config import RunConfig
from fedray.models import make_model_spec
from fedray.models.base import build
from fedray.models.network import Network
from fedray.sweep.document import get_sweeps_folder, list_papers
from fedray.sweep.draws import count_gradients, iter_points
from fedray.sweep.estimate import Key, get_facts, make_batch, make_key
from fedray.sweep.sweep import Sweep

PATIENCE = 3.0
"""Approximate seconds of measurement per model, after a first gradient that does not count."""
RESULTS = Path(__file__).parent / "results" / "gradients.json"


@cache
def measure_seconds(key: Key, device: str) -> float:
    """Measure the seconds of one gradient of the cross-entropy in training mode: the median of several, after a first
    one.

    On the CPU this is processor time, so that other work on the machine does not count.
    """
    clock = time.perf_counter if device == "cuda" else time.process_time
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a run does
    try:
        model = make_model_spec(json.loads(key.model))
        module = build(model, key.shape, key.classes)
        model.adapt(module)
        network = Network(
            module,
            device,
            bf16=key.bf16,
            channels_last=model.channels_last if device == "cpu" else key.bf16,
        )
        x, y = (torch.from_numpy(one).to(device) for one in make_batch(key, model.takes_tokens))
        network.train(True)
        taken: list[float] = []
        while len(taken) < 2 or (sum(taken) < PATIENCE and len(taken) < 100):
            started = clock()
            torch.autograd.grad(cross_entropy(network(x).logits, y), network.trained)
            if device == "cuda":
                torch.cuda.synchronize()
            taken.append(clock() - started)
        return float(np.median(taken[1:]))
    finally:
        torch.set_num_threads(threads)


def list_names() -> list[str]:
    """Return the names of the papers' sweeps."""
    folder = get_sweeps_folder()
    files = (path for paper in list_papers() for path in sorted((folder / paper).glob("*.yaml")))
    return [str(path.relative_to(folder).with_suffix("")) for path in files]


@cache
def count(name: str) -> tuple[int, dict[str, float], int]:
    """Return a sweep's cells, model -> gradients of all cells, and the number of cells of data of unknown size."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for point in iter_points(Sweep.load(get_sweeps_folder() / f"{name}.yaml")):
        cells.setdefault(repr(point | {"seed": None}), []).append(point)
    gradients: dict[str, float] = {}
    unknown = 0
    for alike in cells.values():
        run = RunConfig.parse(alike[0])
        number = count_gradients(run)
        if number is None:
            unknown += len(alike)
        else:
            model = describe(make_key(run))
            gradients[model] = gradients.get(model, 0.0) + len(alike) * number
    return sum(map(len, cells.values())), gradients, unknown


def describe(key: Key) -> str:
    """Return everything that a gradient's duration depends on, as the file names it."""
    options = json.loads(key.model)
    words = [f"{name}={value}" for name, value in options.items() if name != "name" and value not in (None, "none", [])]
    size = "x".join(map(str, key.shape))
    model = " ".join([options["name"], *words])
    return f"{model}, {size}, {key.classes} classes, batches of {key.batch}" + ", bf16" * key.bf16


def sum_hours(name: str) -> float | None:
    """Return the core-hours of a sweep by the measured seconds; None if the size of its data is not known. Raises
    KeyError if a model has not been measured."""
    seconds = json.loads(RESULTS.read_text())["seconds"]
    _, gradients, unknown = count(name)
    return None if unknown else sum(number * seconds[model] for model, number in gradients.items()) / 3600


def main() -> None:
    """Measure what is missing and write the file after each model."""
    again = "--again" in sys.argv[1:]
    held = json.loads(RESULTS.read_text()) if RESULTS.exists() and not again else {"seconds": {}}
    held["machine"] = machine()
    sweeps = (Sweep.load(get_sweeps_folder() / f"{name}.yaml") for name in list_names())
    for run in (RunConfig.parse(point) for sweep in sweeps for point in iter_points(sweep)):
        key = None if (known := get_facts(run)) is None else make_key(run, known)
        if key is not None and (model := describe(key)) not in held["seconds"]:
            held["seconds"][model] = float(f"{measure_seconds(key, 'cpu'):.4g}")
            print(f"{held['seconds'][model]:9.4g} s  {model}", flush=True)
            RESULTS.write_text(json.dumps(held, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
