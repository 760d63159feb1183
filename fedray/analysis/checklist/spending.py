"""Hours of a sweep's runs: the ones in its table, and all others on the way.

The hours of a run are those from its start to its end, in all calls together (`fedray.seconds`), times its processes
and what each of them asks of the cluster. A run of an older version has only the seconds of its rounds. Runs of the
sweep's tune stage and of its smoke version count, and so do runs that were superseded (`--force`), deleted (until
`mlflow gc`), or whose settings the file no longer lists.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedray.analysis.data.collect import Collected
from fedray.cells.status import Status
from fedray.sweep.file.dotted import get_dotted
from fedray.tracking.store import IS_CELL, SECONDS, UNTIMED, find_sweeps, read_cells, read_metrics, read_status, search

if TYPE_CHECKING:
    from fedray.tracking.store import AnyRun

SHOWN = "shown: finished"


@dataclass(frozen=True)
class Spent:
    """Hours of some runs.

    Attributes:
        what: stage and outcome of the runs.
        runs: their number.
        hours: from start to end, added up over the runs; processes that run at the same time count once.
        cpu_hours: hours times the CPUs that a run asks for.
        gpu_hours: hours times the GPUs that a run asks for.
        untimed: runs that left no time.
        killed: calls that were killed before they could write their time.
    """

    what: str
    runs: int = 0
    hours: float = 0.0
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    untimed: int = 0
    killed: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.what,
            self.runs + other.runs,
            self.hours + other.hours,
            self.cpu_hours + other.cpu_hours,
            self.gpu_hours + other.gpu_hours,
            self.untimed + other.untimed,
            self.killed + other.killed,
        )


def list_spending(sweep: Collected) -> list[Spent]:
    """Return the hours by stage and outcome, those of the shown runs first."""
    parents = find_sweeps(sweep.client, sweep.parent.info.experiment_id)
    tune = f"{sweep.name}/tune"
    stages = {"tuning": tune, "final": sweep.name} if tune in parents else {"sweep": sweep.name}
    listed = {stage: read_cells(sweep.client, parents[name]) for stage, name in stages.items()}
    cells = {stage: {cell["hash"] for cell in found} for stage, found in listed.items()}
    rounds = {cell["hash"]: _read_rounds(cell["config"]) for found in listed.values() for cell in found}
    shown = set(sweep.cells.loc[sweep.cells["status"] == "finished", "run_id"])
    found = {SHOWN: Spent(SHOWN)}
    for run, is_deleted in _find_runs(sweep, set().union(*cells.values())):
        what = SHOWN if run.info.run_id in shown else _describe(run, is_deleted, sweep.name, cells)
        seconds = measure_seconds(run, rounds.get(run.data.tags.get("fedray.cell", "")))
        found[what] = found.get(what, Spent(what)) + _measure(run, seconds, what)
    first = found.pop(SHOWN)
    return [first, *(found[what] for what in sorted(found))]


def sum_up(spent: list[Spent], what: str = "all") -> Spent:
    """Return the sum of all rows."""
    return sum(spent, Spent(what))


def _find_runs(sweep: Collected, cells: set[str]) -> Iterator[tuple["AnyRun", bool]]:
    """Yield every run of the sweep's cells, and of cells that were run under its name, once; and if it is deleted."""
    names = [f"{sweep.name}{smoke}{stage}" for smoke in ("", "-smoke") for stage in ("", "/tune")]
    filters = [f"tags.`fedray.sweep` = '{name}'" for name in names] + [
        f"tags.`fedray.cell` = '{cell}'" for cell in cells
    ]
    seen = set[str]()
    for one in filters:
        for deleted in (False, True):
            for run in search(sweep.client, sweep.parent.info.experiment_id, f"{IS_CELL} AND {one}", deleted):
                if run.info.run_id not in seen:
                    seen.add(run.info.run_id)
                    yield run, deleted


def _describe(run: "AnyRun", is_deleted: bool, name: str, cells: dict[str, set[str]]) -> str:
    """Return stage and outcome of a run that the table does not show: `tuning: finished`, `final: superseded`."""
    cell, of = run.data.tags.get("fedray.cell", ""), run.data.tags.get("fedray.sweep", "")
    stage = next((stage for stage, listed in cells.items() if cell in listed), "")
    stage = stage or ("smoke version" if of.startswith(f"{name}-smoke") else "no longer in the file")
    if is_deleted:
        return f"{stage}: deleted"
    tag = run.data.tags.get("fedray.status", "")
    return f"{stage}: {tag if tag == 'superseded' else read_status(run)}"


def _measure(run: "AnyRun", seconds: float | None, what: str) -> Spent:
    tags = run.data.tags
    if seconds is None:
        return Spent(what, 1, untimed=1, killed=int(_read_number(tags.get(UNTIMED))))
    hours, actors = seconds / 3600, _read_number(tags.get("runtime.actors"), 1)
    cpus = actors * _read_number(tags.get("runtime.cpus_per_actor"), 1)
    gpus = actors * _read_number(tags.get("runtime.gpus_per_actor"))
    return Spent(what, 1, hours, hours * cpus, hours * gpus, killed=int(_read_number(tags.get(UNTIMED))))


def list_shown_seconds(sweep: Collected) -> list[float]:
    """Return the seconds of the runs in the table that recorded a time."""
    shown = sweep.cells[sweep.cells["status"] == "finished"]
    pairs = zip(shown["run_id"], shown["config"], strict=True)
    found = (measure_seconds(sweep.runs[run_id], _read_rounds(config.values)) for run_id, config in pairs)
    return [seconds for seconds in found if seconds is not None]


def measure_seconds(run: "AnyRun", rounds: int | None) -> float | None:
    """Return the seconds of a run; None if it left no time.

    Rounds that a killed call made and a later one continued from are in the seconds per round, but not in the time of
    the later call, so the larger number counts.

    Args:
        run: of a cell.
        rounds: of its configuration; None if they are not known.
    """
    told = run.data.tags.get(SECONDS)
    per_round = read_metrics(run).get("seconds_per_round_with_evaluation")
    known = [_read_number(told)] if told else []
    known += [per_round * rounds] if rounds and per_round and read_status(run) is Status.FINISHED else []
    return max(filter(math.isfinite, known), default=None)


def _read_rounds(config: Mapping[str, Any]) -> int | None:
    rounds = get_dotted(config, "training.rounds")
    return rounds if isinstance(rounds, int) else None


def _read_number(text: str | None, otherwise: float = 0.0) -> float:
    """Return the number in a tag, which may come from a stranger's archive; `otherwise` if it holds none."""
    return float(text) if text and re.fullmatch(r"\d{1,12}(\.\d+)?", text, re.ASCII) else otherwise
