"""The only writer to MLflow: one parent run per sweep, one child run per cell, always with a final status.

A cell's runs are found again by the tag `fedray.cell` (its hash), in any sweep. `fedray.status` is
the truth about a run (`Status`); MLflow's own status is FINISHED if the run ended as intended, else FAILED.

The tag is written last: no call comes back to a run that has a final one, so that a killed driver's has to be whole.

A store that is unreachable for a while costs nothing: a write is repeated until it arrives, in the outbox's thread.
Repeating one is harmless, and so is a second driver (with another storage) that logs the same cell at the same time:
a metric's timestamp is its run's start plus its round in milliseconds, and MLflow keeps equal values once.
"""

import hashlib
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from mlflow.entities import Dataset, DatasetInput, Metric, Param, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE, MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE

from fedray.cells.cell import flatten
from fedray.cells.looks import Look
from fedray.cells.record import Record, format_table
from fedray.cells.sheet import Sheet
from fedray.cells.status import SUPERSEDED, Status
from fedray.common.errors import redact
from fedray.common.location import find_local_file, get_storage, store_uri
from fedray.tracking import store
from fedray.tracking.environment import make_environment_tags, make_git_tags
from fedray.tracking.mirrors import Mirror
from fedray.tracking.outbox import CellRun, Outbox
from fedray.tracking.sqlite_store import SqliteClient

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient

    from fedray.tracking.store import AnyClient, AnyRun

T = TypeVar("T")
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's dumper if PyYAML was built with it, which takes a tenth of the time."""

PAGE = "fedray.page"
"""Tag of a sweep's run: the digest of the page that was written last; one that you have edited has another."""
BATCH = 990
"""Metrics sent in one request; MLflow takes 1000 metrics and tags."""


class Tracker:
    """Writes one sweep, or one run, from the driver.

    Every method waits until the store has its writes, and raises UserError if it refuses one, or as `Outbox.deliver`.
    outbox: the thread that calls the methods, given if the store has answered this process: then it is waited for from
    the start; None: the caller's own. looks: hash -> look of a cell's run, which else has its label alone.
    """

    def __init__(self, outbox: Outbox | None = None, looks: Mapping[str, Look] = MappingProxyType({})) -> None:
        self.outbox, self._looks = outbox or Outbox(), looks
        make = partial(store.open_store, create=True)
        self.client, self.experiment = make() if outbox is None else outbox.deliver(make, store.is_transient)
        local = find_local_file(store_uri())
        self.reader: AnyClient = self.client if local is None else SqliteClient(local)  # a tenth of MLflow's time
        self._mirrors: dict[str, Mirror] = {}

    def _deliver(self, call: Callable[[], T]) -> T:
        return self.outbox.deliver(store.translate_refusals()(call), store.is_transient)

    def read_records(self, cells: Iterable[str]) -> dict[str, Record]:
        """Return cell hash -> record of the cells that have one."""
        wanted = list(cells)
        return self._deliver(lambda: store.find_records(self.reader, self.experiment, wanted))

    def has_means(self, sweep: str) -> bool:
        """Return True if the store has means over a sweep's seeds."""
        return self._deliver(lambda: any(store.search(self.reader, self.experiment, store.select_means(sweep))))

    def supersede(self, cells: Sequence[str]) -> None:
        """Mark the earlier runs of these cells, so that each cell keeps one that counts."""

        def mark() -> None:
            for run in store.find_runs(self.reader, self.experiment, cells):
                self._mark_superseded(run.info.run_id, run.info.status == "RUNNING")  # its driver was killed

        self._deliver(mark)

    def _mark_superseded(self, run: str, is_running: bool) -> None:
        """Mark a run, by its id, as one that counts no more."""
        if is_running:
            self.client.set_terminated(run, "FAILED")
        self.client.set_tag(run, "fedray.status", SUPERSEDED)

    def open_sweep(self, sheet: Sheet) -> str:
        """Create or find the sweep's run, and return its id; cells and file are its artefacts.

        Without a file the run keeps the one that it has.
        """
        tags = {
            "fedray.kind": "sweep",
            "fedray.sweep": sheet.name,
            store.DESCRIPTION: sheet.description,
            MLFLOW_RUN_NOTE: sheet.description,
            MLFLOW_SOURCE_NAME: f"fedray sweep {sheet.name}",
            MLFLOW_SOURCE_TYPE: "LOCAL",
        }

        def write() -> str:
            run = store.find_sweeps(self.reader, self.experiment).get(sheet.name)
            if run is None and (run := store.find_deleted_sweep(self.reader, self.experiment, sheet.name)):
                self.client.restore_run(run.info.run_id)  # cells' runs stay below it
            if run is None:
                run = self.client.create_run(self.experiment, run_name=sheet.name, tags=tags | make_git_tags())
            run_id: str = run.info.run_id
            self.client.update_run(run_id, status="RUNNING")
            old = run.data.tags.get(store.DESCRIPTION)
            for key in (store.DESCRIPTION, MLFLOW_RUN_NOTE):
                if old != sheet.description and run.data.tags.get(key) == old:  # a note may be a page
                    self.client.set_tag(run_id, key, sheet.description)
            # Cells that a changed file no longer lists leave the sweep's charts in MLflow's UI.
            before = store.read_cells(self.reader, run)
            for gone in store.find_runs(self.reader, self.experiment, before.keys() - sheet.cells.keys()):
                if store.LISTED + sheet.name in gone.data.tags:
                    self.client.delete_tag(gone.info.run_id, store.LISTED + sheet.name)
            if sheet.file:
                self.client.log_text(run_id, sheet.file, store.SWEEP_FILE)
            self.client.log_dict(run_id, {"cells": sheet.to_json()["cells"]}, store.CELLS)  # last: `list_sweep` asks
            # A run that was deleted in MLflow, so that its cell was trained again, may have been restored.
            finished = f"{store.IS_CELL} AND tags.`fedray.sweep` = '{sheet.name}' AND tags.`fedray.status` = 'finished'"
            runs = Counter(one.data.tags["fedray.cell"] for one in store.search(self.reader, self.experiment, finished))
            for cell in (sheet.cells[hash] for hash, count in runs.items() if count > 1 and hash in sheet.cells):
                self._keep_one(CellRun(cell, {"fedray.sweep": sheet.name}), Status.FINISHED)
            return run_id

        return self._deliver(write)

    def list_sweep(self, sheet: Sheet) -> None:
        """Open the sweep's run as `open_sweep` does, unless it is there and lists these cells."""
        parent = store.find_sweeps(self.reader, self.experiment).get(sheet.name)
        listed = {} if parent is None else store.read_cells(self.reader, parent)
        if listed.keys() != sheet.cells.keys():
            self.open_sweep(sheet)

    def close_whole_sweep(self, sheet: Sheet) -> None:
        """Close the sweep's run if all its cells have an outcome; other processes may run them."""
        marked = f"{store.IS_CELL} AND {store.select_listed(sheet.name)}"
        best = self._deliver(lambda: store.pick_best(store.search(self.reader, self.experiment, marked)))
        sheet = replace(sheet, records={cell: store.read_record(run) for cell, run in best.items()})
        for cell in sheet.cells:  # another sweep may have run it; asked until one is open
            if cell not in sheet.records:
                sheet.records.update(self.read_records([cell]))
            if sheet.get_status(cell).is_open:
                return
        if opened := store.find_sweeps(self.reader, self.experiment).get(sheet.name):
            self.close_sweep(opened.info.run_id, sheet.counts)

    def keep_trials(self, run_id: str, tables: "Sequence[pd.DataFrame]") -> None:
        """Add to what a sweep's run has of Tune's trials; a cell keeps its newest trial."""
        new = [table for table in tables if store.TRIAL_CELL in table]

        def write() -> None:
            import pandas as pd

            known = pd.concat([store.read_trials(self.reader, run_id), *new])
            self.client.log_text(
                run_id, known.drop_duplicates(store.TRIAL_CELL, keep="last").to_csv(index=False), store.TRIALS
            )

        if new:
            self._deliver(write)

    def close_sweep(self, run_id: str, counts: Mapping[Status, int], page: str = "") -> None:
        """Set the final status of a sweep's run: FINISHED if every cell has an outcome, else FAILED.

        page: Markdown that MLflow shows on its page, unless it was edited there; empty: the description stays there.
        """
        tags, digest = {"fedray.cells": store.format_counts(counts)}, hashlib.sha256(page.encode()).hexdigest()
        whole = not any(count and (status.is_open or status is Status.FAILED) for status, count in counts.items())

        def write() -> None:
            known = self.reader.get_run(run_id).data.tags
            shown, own = known.get(MLFLOW_RUN_NOTE, ""), ("", known.get(store.DESCRIPTION))
            if page and (shown in own or hashlib.sha256(shown.encode()).hexdigest() == known.get(PAGE)):
                tags.update({MLFLOW_RUN_NOTE: page, PAGE: digest})
            self.client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])
            self.client.set_terminated(run_id, "FINISHED" if whole else "FAILED")

        self._deliver(write)

    def open_cell(self, run: CellRun, again: bool = True, known: bool = True) -> None:
        """Create the cell's run or, with `again`, find it by its hash. Without `again` the store must be reachable."""
        for kind in run.cell.get("runtime.mirror") or ():
            mirror = self._mirrors[kind] = self._mirrors.get(kind) or Mirror(kind)
            mirror.send(mirror.open, run.cell, run.sweep, get_storage())
        if again:
            self._deliver(lambda: self._find_or_make(run, known))
        else:
            self._make(run)

    def _find_or_make(self, run: CellRun, known: bool) -> None:
        runs = self._find_runs(run) if known or run.tried else []
        run.tried = True  # an attempt whose answer is lost can have made a run
        if not runs:
            self._make(run)
            runs = self._find_runs(run)  # another driver may have created one as well
            if runs[0].info.run_id == run.id:
                return
            self.client.delete_run(run.id)
        first = runs[0]
        if not run.id:  # the first attempt of this write: later ones find what it has changed
            # A run that is still RUNNING was killed, so it left no time.
            earlier, was_killed = first.data.tags, known and store.read_status(first) is Status.RUNNING
            run.spent = float(earlier.get(store.SECONDS, 0))
            run.untimed = int(earlier.get(store.UNTIMED, 0)) + was_killed
        run.id, run.start = first.info.run_id, first.info.start_time or 0
        self.client.update_run(run.id, status="RUNNING")
        tags = self._make_tags(run, first)
        self.client.log_batch(run.id, tags=[RunTag(k, v) for k, v in tags.items()])
        if not self.reader.get_run(run.id).data.params:  # they are written last
            self._describe(run)
        logged = self.reader.get_metric_history(run.id, "test_accuracy")
        run.logged = max((metric.step for metric in logged), default=0)

    def _find_runs(self, run: CellRun) -> list["AnyRun"]:
        """Return the runs with which a cell can go on, the oldest first: every driver takes the same one.

        One that has come to its end is only shown again; who trains the cell anew, and may stop, leaves it as it is.
        """
        every = self._find_counting(run)
        return [one for one in every if run.shown or one.info.run_id == run.id or not store.read_status(one).is_final]

    def _find_counting(self, run: CellRun) -> list["AnyRun"]:
        """Return all runs of a cell that are not superseded, the oldest first, alike for every driver."""
        counting = f"tags.`fedray.cell` = '{run.cell.hash}' AND tags.`fedray.status` != '{SUPERSEDED}'"
        found = store.search(self.reader, self.experiment, counting)
        return sorted(found, key=lambda one: (one.info.start_time or 0, one.info.run_id))

    def _make(self, run: CellRun) -> None:
        name, tags = run.cell.label, self._make_tags(run)
        if look := self._looks.get(run.cell.hash):
            name, tags[store.COLOUR] = look.name, look.colour
        created = self.client.create_run(self.experiment, run_name=name, tags=tags)
        run.id, run.start = created.info.run_id, created.info.start_time
        self._describe(run)

    def _describe(self, run: CellRun) -> None:
        config = dict(run.cell.config)
        with tempfile.TemporaryDirectory() as folder:
            text = yaml.dump(config, Dumper=DUMPER, default_flow_style=False, sort_keys=False, allow_unicode=True)
            (Path(folder) / "config.yaml").write_text(text, encoding="utf-8")
            for name, content in run.files.items():
                (Path(folder) / name).write_bytes(content)
            self.client.log_artifacts(run.id, folder)
        log_dataset(self.client, run.id, config)
        config.pop("runtime", None)
        self.client.log_batch(
            run.id, params=[Param(re.sub(r"[^\w.:/ -]", "_", k), str(v)) for k, v in flatten(config).items()]
        )

    def _make_tags(self, run: CellRun, found: "AnyRun | None" = None) -> dict[str, str]:
        """Return the tags of a run. One that is found, and only shown by this call, keeps its provenance."""
        cell = run.cell
        whole = {
            "fedray.kind": "cell",
            "fedray.cell": cell.hash,
            store.SETTING: cell.setting,
            "fedray.status": str(Status.RUNNING),
            MLFLOW_SOURCE_NAME: f"fedray sweep {run.sweep}" if run.sweep else "fedray run",
            MLFLOW_SOURCE_TYPE: "LOCAL",
            **{f"runtime.{key}": str(value) for key, value in cell.config["runtime"].items()},
            **run.tags,
        }
        whole |= {store.LISTED + run.sweep: "yes"} if run.sweep else {}
        if found is None or not run.shown:
            whole |= make_git_tags() | make_environment_tags()
        whole |= {store.UNTIMED: str(run.untimed)} if run.untimed else {}
        return whole | ({MLFLOW_PARENT_RUN_ID: run.parent} if run.parent is not None else {})

    def log_rows(self, run: CellRun, rows: Sequence[Mapping[str, float]]) -> None:
        """Log evaluated rounds as metrics with step = round; rounds that the store has are left out."""
        for mirror in self._mirrors.values():
            mirror.send(mirror.write, run.cell.hash, rows)
        run.unwritten = [*run.unwritten, *rows]

        def write() -> None:
            for batch in _batch_rows(_iter_new(run, run.unwritten)):
                self.client.log_batch(run.id, batch)
            run.logged = max([run.logged, *(int(row["round"]) for row in run.unwritten)])

        self._deliver(write)
        run.unwritten = []

    def close_cell(self, run: CellRun, record: Record, written: Callable[[], None] = lambda: None) -> None:
        """Log what the store lacks of a cell that has ended: rows, final metrics, tables (`NAME.csv`), `fedray.status`.

        written: called once the store has everything.
        """
        for mirror in self._mirrors.values():
            mirror.send(mirror.close, run.cell.hash, record)
        ending, metrics = record.ending, record.summarise()
        tags = {} if run.shown else dict(record.tags)  # the environment of the machine that has trained it
        tags |= {"fedray.status": str(ending.status), "fedray.message": redact(ending.message)[:5000]}
        tags |= {f"fedray.{name}": value for name, value in record.hashes.items()}
        tags |= {"fedray.stopper": ending.stopper} if ending.stopper else {}
        tags |= {key: value for key, value in run.tags.items() if key == store.ACTORS}  # a run may have grown
        # MLflow draws step 0 as a bar. A cell that was stopped early and goes on is closed twice: of equal steps MLflow
        # shows the later timestamp.
        step = record.last_round
        seconds = (run.ended or time.monotonic()) - run.began
        trained = metrics.get("seconds_per_round_with_evaluation", 0.0) * step  # in killed calls, too

        def write() -> None:
            if ending.status.is_early and step < run.logged:  # another rule had ended it later, in the run found
                self._mark_superseded(run.id, is_running=True)
                run.spent, run.untimed = 0.0, 0
                self._make(run)
                run.logged = 0  # last: if the store fails meanwhile, all of this is done again
            took = {} if run.shown else {store.SECONDS: f"{run.spent + seconds:.3f}"}
            final = [Metric(f"{store.SUMMARY}{k}", v, run.start + step, 0) for k, v in metrics.items()]
            *batches, last = _batch_rows([*_iter_new(run, record.history), final]) or [[]]
            for batch in batches:
                self.client.log_batch(run.id, batch)
            if record.profile:
                self.client.log_dict(run.id, {"rounds": list(record.profile)}, "profile.json")
            for name, table in record.tables.items():
                self.client.log_text(run.id, format_table(table), f"{name}.csv")
            if ending.status is Status.FAILED:  # in place of that of an earlier failure
                self.client.log_text(run.id, redact(ending.traceback or ending.message), "traceback.txt")
            # MLflow shows how long the cell took in all calls, however late or often its run was opened.
            end = run.start + round(1000 * max(run.spent + seconds, trained))
            self.client.set_terminated(run.id, "FINISHED" if ending.status.is_success else "FAILED", end)
            self.client.log_batch(run.id, last, tags=[RunTag(k, v) for k, v in (tags | took).items()])
            run.logged = max(run.logged, step)
            if ending.status.is_success and not run.shown:
                self._keep_one(run, ending.status)
            written()

        self._deliver(write)

    def _keep_one(self, run: CellRun, status: Status) -> None:
        """Let the oldest of the runs count in which a cell has come to this end: two storages share no locks.

        One that is still open was made by a request whose answer came too late.
        """
        found = [(one.info.run_id, store.read_status(one)) for one in self._find_counting(run)]
        kept, *others = [one for one, its in found if its is status]
        if others and run.sweep:
            self.client.set_tag(kept, store.LISTED + run.sweep, "yes")
        for one, its in found:
            if one != kept and its in (status, Status.RUNNING):
                self._mark_superseded(one, is_running=its is Status.RUNNING)

    def close(self) -> None:
        """Wait until the copies are written."""
        for mirror in self._mirrors.values():
            mirror.finish()


def log_dataset(client: "MlflowClient", run_id: str, config: Any) -> None:
    """Log MLflow's column `Dataset` of a cell's configuration: the name, a digest and the text of the options."""
    data = config.get("data") if isinstance(config, dict) else None
    if isinstance(data, dict) and "name" in data:
        text = json.dumps(data, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        dataset = Dataset(name=str(data["name"]), digest=digest, source_type="fedray", source=text)
        client.log_inputs(run_id, [DatasetInput(dataset)])


def _iter_new(run: CellRun, rows: Sequence[Mapping[str, float]]) -> Iterator[list[Metric]]:
    """Yield the metrics of each row that the store lacks."""
    for row in rows:
        if (step := int(row["round"])) > run.logged:
            yield [Metric(name, value, run.start + step, step) for name, value in row.items() if name != "round"]


def _batch_rows(rows: Iterable[list[Metric]]) -> list[list[Metric]]:
    """Return batches of rows that fit into one request each; a row is never split."""
    batches: list[list[Metric]] = []
    for row in rows:
        if not batches or len(batches[-1]) + len(row) > BATCH:
            batches.append([])
        batches[-1] += row
    return batches
