"""Hours of the runs that a table shows, and of all others."""

from collections.abc import Mapping
from typing import Any

import pytest

from fedray.analysis.checklist.spending import SHOWN, Spent, list_spending, measure_seconds, sum_up
from fedray.analysis.data.collect import collect
from fedray.cells.ending import Ending
from fedray.cells.record import RunRecord
from fedray.cells.status import Status
from fedray.tracking.records import CellRun
from fedray.tracking.store import find_runs, open_store
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history

SWEEP, TUNE, SMOKE = {"fedray.sweep": "s"}, {"fedray.sweep": "s/tune"}, {"fedray.sweep": "s-smoke"}


def run(
    one: Mapping[str, Any], hours: float, status: str = "finished", tags: Mapping[str, str] = SWEEP, again: bool = False
) -> None:
    """Write a run that took so long; with `again` it replaces the earlier one."""
    store, made = Tracker(), CellRun(began=0.0, ended=3600 * hours)
    if again:
        store.supersede([one["hash"]])
    store.open_cell(made, one["hash"], one["label"], one["config"], tags, None)
    if status != "running":
        store.close_cell(made, RunRecord(Ending(Status(status)), history(50)))


def with_runtime(one: dict[str, Any], **options: Any) -> dict[str, Any]:
    return one | {"config": one["config"] | {"runtime": options}}


def test_every_run_is_counted_once_with_its_stage_and_outcome(store: Tracker) -> None:
    """Final: 2 + 3 h shown, of which the second with 4 processes on half a GPU and 2 CPUs each (24 CPU-h, 6 GPU-h).

    On the way: a first try of 5 h that was superseded, 1 h that diverged, tuning of 7 h and a failed 0.5 h, a smoke
    version of 0.25 h, settings that the file lists no more (4 h), 6 h deleted, and one that was killed without a time.
    """
    big = with_runtime(cell(SMALL, 0.5, 0), actors=4, cpus_per_actor=2.0, gpus_per_actor=0.5)
    final = [cell(FEDAVG, 0.5, 0), big, cell(FEDAVG, 0.5, 1), cell(FEDAVG, 0.5, 2)]
    tune = [cell(FEDAVG, 0.1, seed) for seed in (100, 101)]
    store.open_sweep("s", "", final)
    store.open_sweep("s/tune", "", tune)
    run(final[0], 5)
    run(final[0], 2, again=True)
    run(big, 3)
    run(final[2], 1, "diverged")
    run(final[3], 9, "running")
    run(tune[0], 7, tags=TUNE)
    run(tune[1], 0.5, "failed", TUNE)
    run(cell(FEDAVG, 0.9, 0), 0.25, tags=SMOKE)
    run(cell(FEDAVG, 0.7, 0), 4)
    run(lost := cell(FEDAVG, 0.8, 0), 6)
    (found,) = find_runs(store.client, store.experiment, [lost["hash"]])
    store.client.delete_run(found.info.run_id)
    run(cell(FEDAVG, 0.6, 0), 100, tags={"fedray.sweep": "another"})
    spent = list_spending(collect("s"))
    assert spent[0] == Spent(SHOWN, 2, 5.0, 2 + 24.0, 6.0)
    assert {one.what: (one.runs, one.hours, one.untimed) for one in spent[1:]} == {
        "final: superseded": (1, 5.0, 0),
        "final: diverged": (1, 1.0, 0),
        "final: running": (1, 0.0, 1),
        "tuning: finished": (1, 7.0, 0),
        "tuning: failed": (1, 0.5, 0),
        "smoke version: finished": (1, 0.25, 0),
        "no longer in the file: finished": (1, 4.0, 0),
        "no longer in the file: deleted": (1, 6.0, 0),
    }
    whole = sum_up(spent)
    assert (whole.runs, whole.hours, whole.untimed) == (10, 2 + 3 + 5 + 1 + 7 + 0.5 + 0.25 + 4 + 6, 1)


@pytest.mark.parametrize(
    ("tag", "per_round", "expected"),
    [
        ("12.5", None, 12.5),
        ("12.5", 0.1, 12.5),  # 0.1 s x 100 rounds, which is less than from start to end
        ("12.5", 0.3, 30.0),  # 30 s of rounds: 20 of them were made by a call that was killed
        (None, 0.3, 30.0),  # a run of an older version
        (None, None, None),
        ("1e999", None, 0.0),  # of a stranger's archive
        ("nan", 0.3, 30.0),
        ("-5", None, 0.0),
    ],
)
def test_the_seconds_of_a_run(tag: str | None, per_round: float | None, expected: float | None, store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0)
    one["config"]["training"] = {"rounds": 100}
    made = CellRun()
    store.open_cell(made, one["hash"], "label", one["config"], {}, None)
    totals = {} if per_round is None else {"seconds_per_round_with_evaluation": per_round}
    store.close_cell(made, RunRecord(Ending(Status.FINISHED), history(50), totals))
    client, experiment = open_store()
    if tag is None:
        client.delete_tag(made.id, "fedray.seconds")
    else:
        client.set_tag(made.id, "fedray.seconds", tag)
    (found,) = find_runs(client, experiment, [one["hash"]])
    assert measure_seconds(found, 100) == expected
