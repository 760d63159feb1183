"""`fedray verify NAME`: run a sample of a sweep's finished cells again and compare every number.

The sweep may come from a stranger's archive, whose numbers may have been changed by hand. So each metric of each round
and each summary is compared, not only the hashes.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedray.api import simulate
from fedray.cells.metric import LAST, PREFIXES
from fedray.cells.record import Rows, RunRecord, summarise_rounds
from fedray.cells.spec import CellSpec
from fedray.cells.status import Status
from fedray.common.errors import Diverged, UserError, truncate_repr
from fedray.components.identity import hash_of
from fedray.components.plugins import NotTrusted, find_source_digest, guard_imports
from fedray.config import RunConfig
from fedray.datasets.base import load_data
from fedray.tracking.environment import (
    PREFIX,
    collect_environment,
    describe_differences,
    list_hashes,
    make_environment_tags,
)
from fedray.tracking.store import SUMMARY, read_status
from fedray.tracking.stored_sweep import Points, StoredSweep, read_stored_sweep

COMPARED = ("system", "cpu", "gpu", "torch")
"""Properties of the environment that the last bits of a run depend on, as `make_environment_tags` names them."""
GOOD = ("same", "agrees")
"""Verdicts that support the sweep."""


@dataclass(frozen=True)
class Repeated:
    """A cell that was run again: `same`, `agrees`, `different`, `not comparable` or `not trusted`, and why."""

    label: str
    word: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word:<14} {self.label}" + (f": {self.reason}" if self.reason else "")


def verify(name: str, count: int, trust: Collection[str] = ()) -> Iterator[Repeated]:
    """Run some finished cells of a sweep again, in this process.

    A module that a cell names is imported only if you trust it, or if its source is that of the cell's run.

    Args:
        name: name of a sweep in the store.
        count: number of cells, spread evenly over the sweep.
        trust: modules that may be imported.

    Yields:
        A verdict for each cell.

    Raises:
        UserError: there is no such sweep, or it has no finished cell.
    """
    sweep = read_stored_sweep(name)
    finished = [
        cell
        for cell in sweep.cells
        if cell.hash in sweep.runs and read_status(sweep.runs[cell.hash]) is Status.FINISHED
    ]
    if not finished:
        raise UserError(f"{name}: has no finished cell to verify")
    count = min(count, len(finished))
    for k in range(count):
        cell = finished[k * len(finished) // count]
        sources = cell.identity.get("sources", {})
        try:
            with guard_imports(partial(_refuse_untrusted, trust=trust, sources=sources)):
                verdict = _judge(sweep, cell, finished)
        except NotTrusted as error:
            verdict = Repeated(cell.label, "not trusted", str(error))
        yield verdict


def describe_environments(name: str) -> Iterator[str]:
    """Yield a line for each environment of a sweep's finished cells that is not this one: where the two differ.

    Raises:
        UserError: there is no such sweep, or an environment that cells name is missing.
    """
    sweep, here = read_stored_sweep(name), collect_environment()
    own = hash_of(here)
    finished = [run for run in sweep.runs.values() if read_status(run) is Status.FINISHED]
    for hash, cells in Counter(hash for run in finished for hash in list_hashes(run)).items():
        if hash != own:
            where = describe_differences({hash: sweep.read_environment(hash), own: here})
            yield f"{name}: {cells} of {len(finished)} cells come from environment {hash}, not from {own}: {where}"


def _refuse_untrusted(path: str, trust: Collection[str], sources: Mapping[str, str]) -> None:
    """Refuse to import a module that is neither trusted nor unchanged since the cell's run."""
    module = path.partition(":")[0]
    here, there = find_source_digest(module), sources.get(path)
    if module in trust or (here is not None and here == there):
        return
    found = "is not found here" if here is None else f"has the digest {here[:16]} here"
    raise NotTrusted(
        f"the source of {truncate_repr(path)} {found}, the cell's is {str(there)[:16]}; "
        f"if you know the module, give --trust {truncate_repr(module)}"
    )


def _judge(sweep: StoredSweep, cell: CellSpec, finished: Sequence[CellSpec]) -> Repeated:
    label, tags = cell.label, sweep.runs[cell.hash].data.tags
    run = RunConfig.parse_stored(cell.config)
    config = run.model_copy(update={"runtime": run.runtime.inline})
    identity = config.make_identity(load_data(config.data).digest)
    if hash_of(identity) != cell.hash:
        listed = cell.identity
        changed = sorted(key for key in identity.keys() | listed.keys() if identity.get(key) != listed.get(key))
        return Repeated(label, "not comparable", f"other settings, data or sources: {', '.join(changed)}")
    try:
        record = simulate(config).record()
    except Diverged as error:
        return Repeated(label, "different", str(error))
    except UserError as error:  # no GPU here, for example
        return Repeated(label, "not comparable", str(error))
    if reason := _explain_environment(sweep, cell.hash, run.runtime.torch_device == "cpu"):
        return _compare_accuracies(label, reason, record, sweep, cell, finished)
    wrong = [key for key, value in record.hashes.items() if value != tags.get(f"fedray.{key}")]
    wrong += _list_differences(record.history, sweep.read_points(cell.hash))
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return Repeated(label, "different" if wrong else "same", ", ".join(wrong[:3]) + more)


def _explain_environment(sweep: StoredSweep, cell: str, on_cpu: bool) -> str:
    """Return why the bits of a run and of the stored one may differ; empty if they may not."""
    tags, here = sweep.runs[cell].data.tags, make_environment_tags()
    for key in COMPARED:
        there, mine = tags.get(PREFIX + key), here.get(PREFIX + key)
        if there != mine and not (key == "gpu" and on_cpu):
            return f"bits may differ ({key} was {there}, here it is {mine})"
    # CPUs of one name may have other instructions: an "AMD EPYC" has AVX512, or not.
    mine = collect_environment()["torch"]["cpu_capability"]
    for hash in list_hashes(sweep.runs[cell]):
        if (there := sweep.read_environment(hash).get("torch", {}).get("cpu_capability", mine)) != mine:
            return f"bits may differ (PyTorch's kernels were for {there}, here they are for {mine})"
    return ""


def _list_differences(history: Rows, stored: Points) -> list[str]:
    """Return a phrase for each metric of a round, and each summary, that differs from the stored value."""
    rounds = {(name, int(row["round"])): value for row in history for name, value in row.items() if name != "round"}
    summary = {(SUMMARY + name, 0): value for name, value in summarise_rounds(history).items()}
    expected = rounds | summary
    summarised = {name for name, _ in summary}
    prefixes = tuple(SUMMARY + prefix for prefix in PREFIXES)
    relevant = {
        point: values
        for point, values in stored.items()
        if (not point[0].startswith(SUMMARY) or point[0] in summarised or point[0].startswith(prefixes))
        and not all(map(math.isnan, values))  # of 0.2, which logged an undefined `test_auc`
    }
    wrong = []
    for name, step in sorted(expected.keys() | relevant.keys(), key=lambda point: (point[1], point[0])):
        here, there = expected.get((name, step)), relevant.get((name, step), [])
        if here is None or not there or any(value != here for value in there):
            shown = name.removeprefix(SUMMARY) if name.startswith(SUMMARY) else f"{name} of round {step}"
            was = " and ".join(map(_format_number, there)) or "missing"
            wrong.append(f"{shown} is {_format_number(here)}, was {was}")
    return wrong


def _format_number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.17g}"


def _compare_accuracies(
    label: str,
    reason: str,
    record: RunRecord,
    sweep: StoredSweep,
    cell: CellSpec,
    finished: Sequence[CellSpec],
) -> Repeated:
    """Judge a run whose bits may differ: its accuracies agree if they are within the spread of the setting's seeds.

    The spread of the seeds is the smaller of two: with the stored accuracy of this seed, and with the one found here.
    So it cannot be widened by changing one number, nor by changing all numbers by the same amount.
    """
    others = [one.hash for one in finished if one is not cell and _without_seed(one) == _without_seed(cell)]
    if not others:
        return Repeated(label, "not comparable", f"{reason}, and a single seed has no spread")
    found = {SUMMARY + name: value for name, value in summarise_rounds(record.history).items()}
    phrases, agree = [], True
    for name in [name for name in found if name.startswith(SUMMARY + LAST) and name.endswith("_accuracy")]:
        there, *values = (sweep.runs[seed].data.metrics.get(name, math.nan) for seed in (cell.hash, *others))
        spread = min(max(*values, mine) - min(*values, mine) for mine in (there, found[name]))
        agree &= abs(found[name] - there) <= spread  # false for NaN
        shown = name.removeprefix(SUMMARY)
        phrases.append(
            f"{shown} is {found[name]:.2f}, was {there:.2f}, {len(values) + 1} seeds spread over {spread:.2f}"
        )
    return Repeated(label, "agrees" if agree else "different", f"{reason}; {'; '.join(phrases)}")


def _without_seed(cell: CellSpec) -> dict[str, Any]:
    return {key: value for key, value in cell.config.items() if key not in ("seed", "runtime")}
