"""Facts of a sweep from its store, in lines: data and splits, seeds, search, runs, error bars, hardware, software."""

import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedray.analysis.checklist.spending import Spent, list_shown_seconds, sum_up
from fedray.analysis.comparison.compare import compare
from fedray.analysis.comparison.text import list_notes
from fedray.analysis.data.axes import find_label, label_cells, label_table
from fedray.analysis.data.cell_config import CellConfig, iter_configs
from fedray.analysis.data.collect import Collected
from fedray.analysis.tables import tuned
from fedray.analysis.tables.build import build
from fedray.common.errors import UserError
from fedray.engine.cost import find_input_shape
from fedray.models.base import count_parameters
from fedray.tracking.environment import Environment
from fedray.tracking.store import read_claims

LARGEST = 1 << 28
"""Maximum size in bytes of an unpacked split; one may come from a stranger's archive."""
SEEDED = (
    "everything random in a run follows from its seed: the split of the data among clients, the initial model, the "
    "clients of each round, the batches"
)
REQUESTED = {"actors": "processes", "threads": "threads", "cpus_per_actor": "CPUs", "gpus_per_actor": "GPUs"}
"""Options of `runtime` that a run's tags hold, and what they count."""
ELSEWHERE = "the GPUs are in other machines than the one that started the runs: their kind is for you to say"
COMMIT = "mlflow.source.git.commit"
NOT_RECORDED = "not recorded: the runs are of an older version"
PACKAGES = ("fedray", "torch", "torchvision", "numpy", "ray", "mlflow")


def describe_data(stages: Mapping[str, Collected]) -> list[str]:
    """Return a line per stage, data set, partition and number of clients, with the sizes of one seed's split."""
    return [line for stage, sweep in stages.items() for line in _describe_splits(stage, sweep)]


def _describe_splits(stage: str, sweep: Collected) -> Iterator[str]:
    sections = [name for name in ("data", "partition") if f"{name}.name" in sweep.cells]
    cells = sweep.cells.assign(_setting=label_cells(sweep.cells, ",".join(sections)))
    keys = ["_setting", *(key for key in ("clients.total", "clients.per_round") if key in cells)]
    for key, group in cells[cells["run_id"].notna()].groupby(keys, sort=False, dropna=False):
        named = dict(zip(keys, key, strict=True))
        clients = f"; {named['clients.total']} clients" if "clients.total" in named else ""
        clients += f", {named['clients.per_round']} in a round" if "clients.per_round" in named else ""
        runs = group.sort_values("seed", key=pd.to_numeric)
        packed = (
            (seed, sweep.read_artefact(run, "partition.npz"))
            for seed, run in zip(runs["seed"], runs["run_id"], strict=True)
        )
        found = next(((seed, split) for seed, split in packed if split), None)
        sizes = f"; seed {found[0]}: {_describe_sizes(found[1])}" if found else "; the sizes are not in the store"
        yield f"{stage}: {named['_setting']}{clients}{sizes}"


def _describe_sizes(packed: bytes) -> str:
    """Return the number of samples of each part of a split, and of the smallest and largest client."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST:
                raise ValueError("it is too large")
        with np.load(io.BytesIO(packed), allow_pickle=False) as file:
            samples = [int(n) for n in file["samples"]]
            sizes = {name.removesuffix("_offsets"): np.diff(file[name]) for name in file if name.endswith("_offsets")}
    except Exception as error:  # zipfile, zlib and NumPy raise their own types for damaged files
        return f"partition.npz cannot be read ({type(error).__name__})"
    whole = f"{samples[0]} training and {samples[1]} test samples" if len(samples) == 2 else f"{samples[0]} samples"
    names = {"train": "trained on", "test": "clients' own test samples", "validation": "held out for validation"}
    parts = [
        f"{int(each.sum())} {names[name]}" + (f" ({each.min()} to {each.max()} per client)" if len(each) > 1 else "")
        for name, each in sizes.items()
    ]
    return ", ".join([whole, *parts])


def describe_seeds(stages: Mapping[str, Collected]) -> list[str]:
    """Return the seeds of each stage, and what a seed decides."""
    lines = []
    for stage, sweep in stages.items():
        seeds = sorted({str(seed) for seed in sweep.cells["seed"]}, key=lambda text: (len(text), text))
        lines.append(f"{stage}: seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}")
    return [*lines, SEEDED, *_describe_partition_seeds(stages)]


def _describe_partition_seeds(stages: Mapping[str, Collected]) -> list[str]:
    """Return a line if splits follow from a seed of the partition's own."""
    found = [
        cells["partition.seed"].dropna()
        for cells in (one.cells for one in stages.values())
        if "partition.seed" in cells
    ]
    seeds = dict.fromkeys(str(seed) for each in found for seed in each)
    return [f"but with partition.seed ({', '.join(seeds)}) the split is the same for every seed"] if seeds else []


def describe_search(sweep: Collected) -> list[str]:
    """Return how values were chosen: of a final stage its tuning, of a search its keys, else the keys that vary."""
    rows, columns = label_table(sweep.cells)
    if chosen := tuned.list_notes(sweep, sweep.cells.assign(_row=rows, _column=columns)):
        return chosen
    if sweep.search.keys:
        return [f"search: {', '.join(sweep.search.keys)} are drawn; {sweep.search.select} decides which draw is best"]
    return ["the store knows of no tuning: the values are those of the sweep's file, listed below"]


def describe_runs(stages: Mapping[str, Collected]) -> list[str]:
    """Return the number of cells of each stage by status, and of settings."""
    lines = []
    for stage, sweep in stages.items():
        counts = Counter(str(status) for status in sweep.cells["status"])
        told = ", ".join(f"{n} {status}" for status, n in counts.most_common())
        lines.append(f"{stage}: {len(sweep.cells)} cells (a configuration with a seed): {told}")
    return lines


def describe_error_bars(sweep: Collected, metric: str, to: str) -> list[str]:
    """Return what the numbers and error bars of the table are, and of the comparison with a row if there is one."""
    table = build(sweep, metric)
    said = [table.title.removeprefix(f"{sweep.name}: "), *(note for note in table.notes[:1])]
    seeds = sweep.cells.groupby(list(label_table(sweep.cells)))["seed"].nunique()
    if seeds.max() > 1:
        said.append("the deviation is that of single runs (n - 1), not the standard error of the mean")
    fedavg = find_label(sweep.cells, "fedavg")
    to = to or (fedavg if fedavg in table.rows else "")
    if to and len(table.rows) > 1 and seeds.max() > 1:
        said += [f"differences from {to}, as fedray compare gives them:", *list_notes(compare(sweep, to, metric))]
    return said


def describe_model(sweep: Collected) -> list[str]:
    """Return the models with their number of parameters; a class of your own is not imported."""
    different = {
        json.dumps([config.get("model"), config.get("data")], sort_keys=True): config
        for config in iter_configs(sweep.cells)
    }
    return list(dict.fromkeys(_count_parameters(config) for config in different.values()))


def _count_parameters(config: CellConfig) -> str:
    name = str(config.get("model.name"))
    try:
        run = config.parse("model")
        trained, every = count_parameters(run.model, *find_input_shape(run))
        return f"{name}: {every:,} parameters" + ("" if trained == every else f", {trained:,} trained")
    except UserError as error:
        return f"{name}: the number of parameters is not known here ({error})"


def describe_hardware(sweeps: Mapping[str, Collected]) -> list[str]:
    """Return a line per distinct machine of the runs' environments, then what a run asks for. Raises UserError."""
    lines, counts, elsewhere = Counter[str](), Counter[str](), False
    for sweep in sweeps.values():
        for hashes in sweep.environments.values():
            lines.update({_describe_machine(sweep.read_environment(hash)) for hash in hashes})
        counts.update(_describe_request(run.data.tags) for run in sweep.runs.values())
        elsewhere |= any(_computes_elsewhere(sweep, run_id) for run_id in sweep.runs)
    found = [f"{line} ({n} runs)" for line, n in lines.items()] or [NOT_RECORDED]
    found += [f"a run asks for {asked} ({n} runs)" for asked, n in counts.items()]
    return [*found, *([ELSEWHERE] if elsewhere else [])]


def _computes_elsewhere(sweep: Collected, run_id: str) -> bool:
    """Return True if a run asks for GPUs that the machine of its driver does not have."""
    asked = sweep.runs[run_id].data.tags.get("runtime.gpus_per_actor", "0.0")
    environments = [sweep.read_environment(hash) for hash in sweep.environments[run_id]]
    return asked not in ("0", "0.0") and bool(environments) and not any(one.get("gpu") for one in environments)


def _count_environments(sweep: Collected) -> Counter[str]:
    """Return the number of runs of each environment, by hash."""
    return Counter(hash for hashes in sweep.environments.values() for hash in hashes)


def _describe_request(tags: Mapping[str, str]) -> str:
    """Return what a run asks of the cluster: processes, and what each has."""
    asked = {key: tags.get(f"runtime.{key}", "?").removesuffix(".0") for key in REQUESTED}
    processes, threads, cpus, gpus = (f"{asked[key]} {noun}" for key, noun in REQUESTED.items())
    return f"{processes}, each with {threads}, {cpus} and {gpus}"


def _describe_machine(one: Environment) -> str:
    cpu, gpu, torch = (one.get(section, {}) for section in ("cpu", "gpu", "torch"))
    parts = [f"{cpu.get('count', '?')} CPUs ({cpu.get('model', 'name not known')})"]
    parts += [f"{one['memory']['gib']} GiB of memory"] if one.get("memory") else []
    models = Counter(gpu.get("models", ()))
    parts += [f"{n} x {model}, driver {gpu['driver']}" for model, n in models.items()] or ["no NVIDIA GPU"]
    parts += [f"CUDA {torch['cuda']}, cuDNN {torch.get('cudnn', '-')}"] if models and torch.get("cuda") else []
    return ", ".join(parts)


def describe_software(sweeps: Mapping[str, Collected]) -> list[str]:
    """Return a line per environment (system, container, Python, main packages) and commit. Raises UserError."""
    environments, commits = Counter[str](), Counter[str]()
    for sweep in sweeps.values():
        for hash, n in _count_environments(sweep).items():
            environments[f"environment {hash}: {_list_versions(sweep.read_environment(hash))}"] += n
        tags = (run.data.tags for run in sweep.runs.values())
        commits.update(f"commit of fedray: {one[COMMIT]}" for one in tags if COMMIT in one)
    mixtures = [f"WARNING: {stage}: {said}" for stage, sweep in sweeps.items() if (said := sweep.describe_mixture())]
    found = [f"{line} ({n} runs)" for line, n in environments.items()] or [NOT_RECORDED]
    return [*mixtures, *found, *(f"{line} ({n} runs)" for line, n in commits.items())]


def _list_versions(one: Environment) -> str:
    packages: Mapping[str, Any] = one.get("packages", {})
    system, container = one.get("system", {}), one.get("container", {})
    parts = [f"{system.get('distribution', '?')} ({system.get('name', '?')})"]
    parts += [f"in {' '.join(map(str, container.values()))}"] if container else []
    parts += [f"Python {one.get('python', {}).get('version', '?')}"]
    parts += [f"{name} {packages[name]}" for name in PACKAGES if name in packages]
    return ", ".join(parts) + f"; all {len(packages)} packages are in its artefact"


def describe_hours(sweep: Collected, spent: list[Spent]) -> list[str]:
    """Return the hours of the shown runs and of all; the page has the table."""
    shown, whole = spent[0], sum_up(spent)
    times = list_shown_seconds(sweep)
    each = f"; a run took {_format_span(min(times), max(times))}" if times else ""
    lines = [
        f"{_format(shown)} for the {shown.runs} runs shown{each}",
        f"{_format(whole)} for all {whole.runs} runs, with tuning, failed, diverged, ended early and superseded ones",
    ]
    if whole.untimed:
        lines.append(f"{whole.untimed} of them left no time and count as 0 hours")
    if whole.killed:
        lines.append(f"{whole.killed} calls were killed before they could write their time, which is not included")
    return lines


def _format(one: Spent) -> str:
    gpus = f", {format_hours(one.gpu_hours)} GPU-hours" if one.gpu_hours else ""
    return f"{format_hours(one.hours)} hours ({format_hours(one.cpu_hours)} CPU-hours{gpus})"


def format_hours(hours: float) -> str:
    """Format hours to three figures."""
    return f"{hours:.3g}" if hours < 1000 else f"{hours:,.0f}"


def _format_span(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g} s" if high < 600 else f"{low / 3600:.3g} to {high / 3600:.3g} h"


def describe_claims(sweep: Collected) -> list[str]:
    """Return the claims that the sweep's file states; `fedray claims` decides them."""
    claims = read_claims(sweep.client, sweep.parent)
    said = [f"claim {claim['name']}: {claim['says']}" for claim in claims]
    return [*said, f"fedray claims {sweep.name} says whether these runs bear them out"] if said else []


def describe_assets(sweep: Collected) -> list[str]:
    """Return the data sets and methods that a paper has to cite, and the command that prints their entries."""
    named = {
        "data": dict.fromkeys(str(config.get("data.name")) for config in iter_configs(sweep.cells)),
        "methods": dict.fromkeys(str(config.get("algorithm.name")) for config in iter_configs(sweep.cells)),
    }
    lines = [f"{what}: {', '.join(names)}" for what, names in named.items()]
    return [*lines, f"BibTeX of all of them: fedray cite {sweep.name}"]


def describe_commands(sweep: Collected) -> list[str]:
    """Return the commands that make, check and pass on the results."""
    sources = Counter(run.data.tags.get("mlflow.source.name", "not recorded") for run in sweep.runs.values())
    made = ", ".join(f"{source} ({n} runs)" for source, n in sources.most_common()) or "not recorded"
    return [
        f"made by: {made}",
        f"checked by: fedray verify {sweep.name} (runs some cells again and compares every number)",
        f"passed on by: fedray export {sweep.name} FILE.zip (cells, curves, splits, environments)",
    ]
