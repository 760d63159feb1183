"""Hours of a sweep's runs: of those that its table shows, and of all others that were made on the way.

The hours of a run are those from its start to its end, in all calls together (`fedray.seconds`), times its processes
and what each of them asks of the cluster. A run of an older version has only the seconds of its rounds. Runs of the
sweep's tune stage and of its smoke version count, and so do runs that were superseded (`--force`), deleted (until
`mlflow gc`), or whose settings the file no longer lists.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlflow.entities import Run, ViewType

from fedray.analysis.data.collect import Collected
from fedray.runs.status import Status
from fedray.tracking.store import IS_CELL, SECONDS, UNTIMED, cells_of, metrics, read_status, search, sweeps_in

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
    parents = sweeps_in(sweep.client, sweep.parent.info.experiment_id)
    tune = f"{sweep.name}/tune"
    stages = {"tuning": tune, "final": sweep.name} if tune in parents else {"sweep": sweep.name}
    cells = {stage: {cell["hash"] for cell in cells_of(sweep.client, parents[name])} for stage, name in stages.items()}
    shown = set(sweep.cells.loc[sweep.cells["status"] == "finished", "run_id"])
    found = {SHOWN: Spent(SHOWN)}
    for run in _find_runs(sweep, set().union(*cells.values())):
        what = SHOWN if run.info.run_id in shown else _describe(run, sweep.name, cells)
        found[what] = found.get(what, Spent(what)) + _measure(run, what)
    first = found.pop(SHOWN)
    return [first, *(found[what] for what in sorted(found))]


def sum_up(spent: list[Spent], what: str = "all") -> Spent:
    """Return the sum of all rows."""
    return sum(spent, Spent(what))


def _find_runs(sweep: Collected, cells: set[str]) -> Iterator[Run]:
    """Yield every run of the sweep's cells, and of cells that were run under its name, each once."""
    names = [f"{sweep.name}{smoke}{stage}" for smoke in ("", "-smoke") for stage in ("", "/tune")]
    filters = [f"tags.`fedray.sweep` = '{name}'" for name in names] + [
        f"tags.`fedray.cell` = '{cell}'" for cell in cells
    ]
    seen = set[str]()
    for one in filters:
        for run in search(sweep.client, sweep.parent.info.experiment_id, f"{IS_CELL} AND {one}", ViewType.ALL):
            if run.info.run_id not in seen:
                seen.add(run.info.run_id)
                yield run


def _describe(run: Run, name: str, cells: dict[str, set[str]]) -> str:
    """Return stage and outcome of a run that the table does not show: `tuning: finished`, `final: superseded`."""
    cell, of = run.data.tags.get("fedray.cell", ""), run.data.tags.get("fedray.sweep", "")
    stage = next((stage for stage, listed in cells.items() if cell in listed), "")
    stage = stage or ("smoke version" if of.startswith(f"{name}-smoke") else "no longer in the file")
    if run.info.lifecycle_stage != "active":
        return f"{stage}: deleted"
    tag = run.data.tags.get("fedray.status", "")
    return f"{stage}: {tag if tag == 'superseded' else read_status(run)}"


def _measure(run: Run, what: str) -> Spent:
    tags, seconds = run.data.tags, measure_seconds(run)
    if seconds is None:
        return Spent(what, 1, untimed=1, killed=int(_read_number(tags.get(UNTIMED))))
    hours, actors = seconds / 3600, _read_number(tags.get("runtime.actors"), 1)
    cpus = actors * _read_number(tags.get("runtime.cpus_per_actor"), 1)
    gpus = actors * _read_number(tags.get("runtime.gpus_per_actor"))
    return Spent(what, 1, hours, hours * cpus, hours * gpus, killed=int(_read_number(tags.get(UNTIMED))))


def measure_seconds(run: Run) -> float | None:
    """Return the seconds of a run; None if it left no time.

    Rounds that a killed call made and a later one continued from are in the seconds per round, but not in the time of
    the later call, so the larger number counts.
    """
    told = run.data.tags.get(SECONDS)
    per_round = metrics(run).get("seconds_per_round_with_evaluation")
    rounds = run.data.params.get("training.rounds")
    known = [_read_number(told)] if told else []
    known += [per_round * _read_number(rounds)] if rounds and per_round and read_status(run) is Status.FINISHED else []
    return max(filter(math.isfinite, known), default=None)


def _read_number(text: str | None, otherwise: float = 0.0) -> float:
    """Return the number in a tag, which may come from a stranger's archive; `otherwise` if it holds none."""
    return float(text) if text and re.fullmatch(r"\d{1,12}(\.\d+)?", text, re.ASCII) else otherwise
