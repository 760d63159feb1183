"""Questions of a reviewer that the store answers: seeds, splits, ranges and chosen values, hours, hardware.

The hours of a run are those from its start to its end, in all calls together. Every run under the sweep's name counts:
those of its tune stage and its smoke version too, and those that are superseded (`--force`), no longer in the file, or
deleted (until `mlflow gc`). Of runs under another name those count that a stage of the sweep uses.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedray.analysis.data.axes import label_cells, label_table
from fedray.analysis.data.collect import Collected, collect
from fedray.analysis.tables.build import list_tuning_notes
from fedray.cells.status import Status
from fedray.common.errors import format_count
from fedray.tracking.store import IS_CELL, SECONDS, UNTIMED, find_sweeps, read_metrics, read_status, search

if TYPE_CHECKING:
    from fedray.tracking.store import AnyRun

LARGEST = 1 << 28
"""Maximum size in bytes of an unpacked split, which may come from a stranger's archive."""
SHOWN = "finished and shown"
PARTS = {"train": "trained on", "test": "clients' own test samples", "validation": "held out for validation"}
ASKED = {"actors": 1, "cpus_per_actor": 1, "gpus_per_actor": 0}
"""Options of `runtime` that say what a run asks of the cluster, with their defaults."""


def list_answers(sweep: Collected) -> dict[str, list[str]]:
    """Return question -> lines; a split or an environment that cannot be read is a line, too."""
    tune = f"{sweep.name}/tune"
    has_tune = tune in find_sweeps(sweep.client, sweep.parent.info.experiment_id)
    stages = [*([collect(tune)] if has_tune else []), sweep]
    return {
        "Seeds": _describe_seeds(stages),
        "Data and splits": [line for stage in stages for line in _describe_splits(stage)],
        "Ranges and chosen values": _describe_search(sweep),
        "Hours": _describe_hours(measure_hours(sweep, stages)),
        "Hardware": _describe_hardware(stages),
    }


def _describe_seeds(stages: Iterable[Collected]) -> list[str]:
    lines, own = [], dict[str, None]()
    for one in stages:
        lines.append(f"{one.name}: {', '.join(map(str, sorted(map(int, one.cells['seed'].unique()))))}")
        own |= dict.fromkeys(one.cells["partition.seed"].dropna() if "partition.seed" in one.cells else [])
    lines.append("a run's seed decides its split, its initial model, the clients of each round, and their batches")
    return [*lines, *(f"but with partition.seed {seed} the split is the same for every seed" for seed in own)]


def read_splits(sweep: Collected, file: str) -> Iterator[tuple[str, str, bytes | None]]:
    """Yield data set, partition and number of clients in a line, and of the first seed that has a file of the split
    (`partition.png` or `partition.npz`): the seed and the file's content; None if no run has it.
    """
    sections = ",".join(name for name in ("data", "partition") if f"{name}.name" in sweep.cells)
    cells = sweep.cells.assign(_setting=label_cells(sweep.cells, sections))
    keys = ["_setting", *(key for key in ("clients.total", "clients.unseen") if key in cells)]
    for key, group in cells[cells["run_id"].notna()].groupby(keys, sort=False, dropna=False):
        numbers = dict(zip(keys, key, strict=True))
        named = str(key[0]) + (f", {numbers['clients.total']} clients" if "clients.total" in numbers else "")
        named += f", {numbers['clients.unseen']} unseen" if float(str(numbers.get("clients.unseen", 0))) > 0 else ""
        runs = group.sort_values("seed", key=pd.to_numeric)
        found = (
            (str(seed), sweep.read_artefact(run, file)) for seed, run in zip(runs["seed"], runs["run_id"], strict=True)
        )
        yield named, *next(filter(lambda pair: pair[1], found), ("", None))


def _describe_splits(sweep: Collected) -> Iterator[str]:
    for named, seed, packed in read_splits(sweep, "partition.npz"):
        sizes = f"seed {seed}: {count_samples(packed)}" if packed else "the sizes are not in the store"
        yield f"{sweep.name}: {named}; {sizes}"


def count_samples(packed: bytes) -> str:
    """Return the number of samples of a `partition.npz`, and of each part, with its smallest and largest client."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST:
                raise ValueError("it is too large")
        with np.load(io.BytesIO(packed), allow_pickle=False) as file:
            lines = [f"{' + '.join(map(str, file['samples'].tolist()))} samples"]
            for part, words in ((part, words) for part, words in PARTS.items() if f"{part}_offsets" in file):
                sizes = np.diff(file[f"{part}_offsets"])
                span = f" ({sizes.min()} to {sizes.max()} per client)" if len(sizes) > 1 else ""
                lines.append(f"{sizes.sum()} {words}{span}")
        return ", ".join(lines)
    except Exception as error:  # zipfile, zlib and NumPy raise their own types for damaged files
        return f"partition.npz cannot be read ({type(error).__name__})"


def _describe_search(sweep: Collected) -> list[str]:
    rows, columns = label_table(sweep.cells)
    if chosen := list_tuning_notes(sweep, sweep.cells.assign(_row=rows, _column=columns)):
        return chosen
    if sweep.search.keys:
        return [f"{', '.join(sweep.search.keys)} are drawn; {sweep.search.select} decides which draw is best"]
    return ["the store knows of no tuning: the values are those of the sweep's file, under Settings"]


def measure_hours(sweep: Collected, stages: Iterable[Collected]) -> pd.DataFrame:
    """Return a row per run: `what` (SHOWN, or the sweep that made it, with its outcome), `hours` (NaN if it left none),
    `CPU-hours`, `GPU-hours`, and `killed`, the number of its calls that could not write their time.
    """
    rounds = {cell: spec.get("training.rounds") for one in stages for cell, spec in one.cells[["cell", "spec"]].values}
    shown = {*sweep.cells.loc[sweep.cells["status"] == "finished", "run_id"]}
    rows = []
    for run_id, (run, gone) in _find_runs(sweep, stages).items():
        tags, status = run.data.tags, read_status(run)
        outcome = gone or ("superseded" if tags.get("fedray.status") == "superseded" else status)
        what = SHOWN if run_id in shown else f"{tags.get('fedray.sweep', 'fedray run')}: {outcome}"
        asked = [tags.get(f"runtime.{key}", n) for key, n in ASKED.items()]
        # Rounds of a killed call that a later one continued from are in the seconds per round, but not in SECONDS.
        per_round = read_metrics(run).get("seconds_per_round_with_evaluation") if status is Status.FINISHED else None
        took = [tags.get(SECONDS), per_round, rounds.get(tags.get("fedray.cell", "")), tags.get(UNTIMED, 0)]
        rows.append([what, *asked, *took])
    columns = ["what", *ASKED, "seconds", "per_round", "rounds", "killed"]
    found = pd.DataFrame(rows, columns=columns).set_index("what")
    numbers: pd.DataFrame = found.apply(pd.to_numeric, errors="coerce")  # a stranger's tags can hold any text
    numbers = numbers.where((numbers >= 0) & (numbers < 1e12))
    numbers["hours"] = np.fmax(numbers["seconds"], numbers["per_round"] * numbers["rounds"]) / 3600
    numbers["CPU-hours"] = numbers["hours"] * numbers["actors"] * numbers["cpus_per_actor"]
    numbers["GPU-hours"] = numbers["hours"] * numbers["actors"] * numbers["gpus_per_actor"]
    return numbers.reset_index()[["what", "hours", "CPU-hours", "GPU-hours", "killed"]]


def _find_runs(sweep: Collected, stages: Iterable[Collected]) -> "dict[str, tuple[AnyRun, str]]":
    """Return every run by id, with `deleted` if it is."""
    runs = {run_id: (run, "") for one in stages for run_id, run in one.runs.items()}
    for name in (f"{sweep.name}{smoke}{stage}" for smoke in ("", "-smoke") for stage in ("", "/tune")):
        for gone in ("", "deleted"):
            made = f"{IS_CELL} AND tags.`fedray.sweep` = '{name}'"
            found = search(sweep.client, sweep.parent.info.experiment_id, made, deleted=bool(gone))
            runs |= {run.info.run_id: (run, gone) for run in found}
    return runs


def _describe_hours(runs: pd.DataFrame) -> list[str]:
    """Return a line per outcome, the shown runs first, and one for all."""
    lines = []
    for what, group in [*sorted(runs.groupby("what"), key=lambda pair: pair[0] != SHOWN), ("all", runs)]:
        sums = group.drop(columns="what").sum()
        parts = [f"{float(f'{n:.3g}'):,g} {unit}" for unit, n in sums.items() if unit != "killed"]
        parts += [f"{n} of them left no time" for n in [group["hours"].isna().sum()] if n]
        parts += [f"{n:g} killed calls are not included" for n in [sums["killed"]] if n]
        lines.append(f"{what}: {format_count(len(group), 'run')}, {', '.join(parts)}")
    return lines


def _describe_hardware(stages: Iterable[Collected]) -> list[str]:
    """Return a line per distinct machine that started runs, and per what runs asked of the cluster."""
    lines = Counter[str]()
    for one in stages:
        for run in one.runs.values():
            tags = run.data.tags
            models = [tags[key] for key in ("environment.cpu", "environment.gpu") if key in tags]
            lines["started on " + (", ".join(models) or "a machine that is not recorded")] += 1
            lines["asked for " + ", ".join(f"{key} {tags.get(f'runtime.{key}', n)}" for key, n in ASKED.items())] += 1
    return [f"{line} ({format_count(n, 'run')})" for line, n in sorted(lines.items(), reverse=True)]
