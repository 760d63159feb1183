"""MLflow's store and queries to it."""

import contextlib
import io
import json
import logging
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fedray.cells.cell import Cell
from fedray.cells.metric import FINAL
from fedray.cells.record import UNSUMMARISED, Record
from fedray.cells.sheet import Sheet
from fedray.cells.status import SUPERSEDED, Ending, Status
from fedray.common import location
from fedray.common.errors import UserError, format_count, join_lines, redact, unknown, warn_once
from fedray.common.whole_files import lock_folder
from fedray.common.yaml_files import is_yaml
from fedray.tracking.sqlite_store import AT_ONCE, SqliteClient, StoredRun

if TYPE_CHECKING:  # MLflow takes two seconds to import
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

    AnyClient: TypeAlias = MlflowClient | SqliteClient
    """A client that reads: MLflow's, or fedray's for a SQLite file."""
    AnyRun: TypeAlias = Run | StoredRun


T = TypeVar("T")
EXPERIMENT = "fedray"
SUMMARY = "summary/"
"""Prefix of metrics that a run has once, so that MLflow's pages show them in a section of their own."""
SETTING = "fedray.setting"
"""Tag of a cell's run: its label without the seed."""
COLOUR = "mlflow.runColor"
"""Tag of a run: its colour in MLflow's list and charts."""
DESCRIPTION = "fedray.description"
"""Tag of a sweep's run."""
CELLS = "cells.json"
"""Artefact of a sweep's run: its cells, in the order of its file."""
SWEEP_FILE = "sweep.yaml"
"""Artefact of a sweep's run, and member of an archive: the sweep's file."""
TRIALS, TRIAL_CELL = "trials.csv", "config/cell"
"""Artefact of a sweep's run: what Ray Tune says of its trials, a row per cell; and the column with the cell's hash."""
ACTORS = "runtime.actors"
"""Tag of a cell's run: number of processes that trained its clients in the end; `auto` in runs of older versions."""
SECONDS, UNTIMED = "fedray.seconds", "fedray.untimed"
"""Tags of a cell's run: seconds that it took from its start to its end, in all calls together, and the number of calls
that were killed before they could write theirs."""
TRAINING_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag by which MLflow's list of experiments opens the training view."""
QUERIES = 16
"""Number of queries that a server gets at once: the time of a slow one is that of its network, or of a proxy."""
LIBRARIES = {
    "s3": "boto3",
    "gs": "google.cloud.storage",
    "wasbs": "azure.storage.blob",
    "abfss": "azure.storage.filedatalake",
    "hdfs": "pyarrow",
    "sftp": "pysftp",
}
"""Scheme of an address of artefacts -> the module with which MLflow reads and writes there."""
LARGEST = 1e100
"""Largest metric that tables compute with."""
IS_CELL = "tags.`fedray.kind` = 'cell'"
MEAN_OF = "fedray.mean_of"
"""Tag of a run of means over seeds: its sweep."""
LISTED = "fedray.listed."
"""With a sweep's name, tag of the runs of the cells that its file lists, whichever sweep ran them: MLflow's UI can
select by it."""


class NotStored(UserError):
    """The store, its experiment, or a sweep in it does not exist."""


def open_reader() -> "tuple[AnyClient, str]":
    """Return a client that only reads (of a SQLite file whose artefacts are files without MLflow), and the experiment.

    Raises UserError if the store cannot be used, NotStored if there is none.
    """
    local = location.find_local_file(location.store_uri())
    if local is None or not location.is_there():
        return open_store()
    location.refuse_unusable(location.store_uri())
    client = SqliteClient(local)
    experiment = client.get_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
    return open_store() if experiment is None else (client, experiment)


def open_store(create: bool = False) -> "tuple[MlflowClient, str]":
    """Return MLflow's client, for writing, and the experiment's id; `create` makes what is missing.

    A store that has moved names its files where they are from now on. Raises NotStored if there is none, UserError
    if it cannot be used, or has the tables of another program or another version of MLflow.
    """
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # the address can hold a password
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # the outbox retries without blocking
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    uri = location.store_uri()
    local = location.find_local_file(uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    if local is not None and not create and not location.is_there():
        folder = "" if local.parent.is_dir() else f", and no folder {local.parent}"
        raise NotStored(
            f"there is no store at {local}{folder}; the first sweep makes it, some seconds after its start, unless "
            "MLFLOW_TRACKING_URI names another"
        )
    location.refuse_unwritable_store()
    from mlflow import MlflowClient

    for noisy in ("alembic", "mlflow"):  # after the import, which sets the level itself
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # logs the traceback of what it raises
    try:
        # Two processes that create its tables at once would leave it broken.
        with contextlib.nullcontext() if local is None else lock_folder(local.resolve().parent):
            if local is None:
                _refuse_other_database(uri)
            elif not location.is_there():
                _make(local.resolve(), name)
            else:
                location.refuse_other_file(local)
                if old := SqliteClient(local).follow_move():
                    logging.getLogger("fedray").warning(
                        "%s has moved: it now names its files where they are, no longer in %s", local, old
                    )
            client = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(name)
            if found is not None:
                _refuse_unusable_experiment(found)
                return client, found.experiment_id
            if not create:
                raise NotStored(f"MLflow has no experiment named {name!r} in this store; run a sweep first")
            try:
                return client, client.create_experiment(name, _locate_artifacts(local), TRAINING_KIND)
            except Exception:
                if (found := client.get_experiment_by_name(name)) is None:
                    raise
                return client, found.experiment_id  # another process has just created it
    except UserError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, or that of a database's driver which is not installed
        raise UserError(f"{location.UNUSABLE_STORE}: {redact(join_lines(error))}") from None


def _refuse_unusable_experiment(found: "Experiment") -> None:
    """Refuse an experiment that is deleted, or whose artefacts need a library that is missing. Raises UserError."""
    if found.lifecycle_stage != "active":
        raise UserError(
            f"MLFLOW_EXPERIMENT_NAME: the experiment {found.name!r} has been deleted in MLflow; `mlflow experiments "
            f"restore --experiment-id {found.experiment_id}` restores it, or name another"
        )
    module = LIBRARIES.get(found.artifact_location.partition("://")[0], "")
    with contextlib.suppress(ModuleNotFoundError):  # raised if a package that holds the module is missing
        if not module or find_spec(module) is not None:
            return
    raise UserError(
        f"MLFLOW_EXPERIMENT_NAME: the artefacts of the experiment {found.name!r} are at "
        f"{redact(found.artifact_location)}, which needs the module {module}; install it, or name another experiment"
    )


def _refuse_other_database(uri: str) -> None:
    """Refuse a database whose tables another version of MLflow made; a server looks after its own. Raises UserError."""
    if uri.partition("://")[0].partition("+")[0] not in ("postgresql", "mysql", "mssql", "sqlite"):
        return
    from alembic.migration import MigrationContext
    from mlflow.store.db.utils import create_sqlalchemy_engine

    engine = create_sqlalchemy_engine(uri)
    with engine.connect() as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
    engine.dispose()
    if revision:
        location.refuse_other_tables(redact(uri), revision, "mlflow db upgrade $MLFLOW_TRACKING_URI")


def _make(store: Path, experiment: str) -> None:
    """Create a SQLite store with the experiment in a file next to it, which is renamed once it is complete.

    MLflow creates the tables one by one and cannot resume: a process that is killed meanwhile would leave a store that
    cannot be opened.
    """
    from mlflow import MlflowClient

    new = store.with_name(f"{store.name}.new")
    journals = [path.with_name(f"{path.name}-journal") for path in (new, store)]  # SQLite would undo what they hold
    logging.getLogger("fedray").info("making the store %s", store)
    for left in (new, *journals):
        left.unlink(missing_ok=True)
    try:
        client = MlflowClient(tracking_uri=f"sqlite:///{new}")
        client.create_experiment(experiment, _locate_artifacts(store), TRAINING_KIND)
        new.replace(store)
    finally:
        for left in (new, journals[0]):
            left.unlink(missing_ok=True)


def _locate_artifacts(store: Path | None) -> str | None:
    """Return the address of the artefacts of a SQLite store; None for a server, which decides itself."""
    return None if store is None else (store.resolve().parent / location.ARTIFACTS).as_uri()


def search(client: "AnyClient", experiment: str, filter: str, deleted: bool = False) -> "Iterator[AnyRun]":
    """Yield all runs (or all deleted ones), newest first, that match a filter in MLflow's language.

    That is conditions on tags, such as "tags.`fedray.kind` = 'cell'", joined by AND.
    """
    if isinstance(client, SqliteClient):
        yield from client.find_runs(experiment, filter, deleted)
        return
    from mlflow.entities import ViewType
    from mlflow.utils import get_results_from_paginated_fn

    view, order = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY, ["attributes.start_time DESC"]
    yield from get_results_from_paginated_fn(
        lambda most, token: client.search_runs([experiment], filter, view, most, order, token), 1000
    )


def find_run(client: "AnyClient", run_id: str) -> "AnyRun | None":
    """Return the run with an id; None if the store has none."""
    try:
        return client.get_run(run_id)
    except _with_mlflow_errors(LookupError):
        return None


def find_sweeps(client: "AnyClient", experiment: str) -> "dict[str, AnyRun]":
    """Return name -> the sweep's own run; the newest if there are several, as `Tracker.open_sweep` takes it."""
    sweeps: dict[str, AnyRun] = {}
    for run in search(client, experiment, "tags.`fedray.kind` = 'sweep'"):
        if name := _get_name(run, "fedray.sweep"):
            sweeps.setdefault(name, run)
    return sweeps


def find_deleted_sweep(client: "AnyClient", experiment: str, name: str) -> "AnyRun | None":
    """Return a sweep's own run that was deleted in MLflow while runs of its cells stayed; None if there is none."""
    for run in search(client, experiment, "tags.`fedray.kind` = 'sweep'", deleted=True):
        below = f"{IS_CELL} AND tags.`mlflow.parentRunId` = '{run.info.run_id}'"
        if run.data.tags.get("fedray.sweep") == name and any(search(client, experiment, below)):
            return run
    return None


def select_listed(sweep: str) -> str:
    """Return the filter that finds the runs of the cells that a sweep lists now."""
    return f"tags.`{LISTED}{sweep}` = 'yes'"


def select_means(sweep: str) -> str:
    """Return the filter that finds a sweep's runs of means over seeds."""
    return f"tags.`{MEAN_OF}` = '{sweep}'"


def find_blocks(client: "AnyClient", experiment: str, names: Iterable[str]) -> dict[str, list[int]]:
    """Return sweep -> numbers of its blocks in the store, NAME/0, NAME/1, ...; none if NAME itself is a sweep there."""
    known = find_sweeps(client, experiment)
    parts = [(above, int(number)) for above, _, number in (one.rpartition("/") for one in known) if number.isdecimal()]
    return {name: sorted(k for above, k in parts if above == name and name not in known) for name in names}


def _get_name(run: "AnyRun", tag: str) -> str:
    """Return the tag of a run that says whose it is; empty, with a warning, for a run that has lost it."""
    if not (name := run.data.tags.get(tag, "")):
        warn_once(f"run {run.info.run_id} has no tag {tag}, so that it is left out")
    return name


def read_cells(client: "AnyClient", sweep: "AnyRun", intact: bool = False) -> dict[str, Cell]:
    """Return hash -> cell that a sweep's own run lists, in its order; empty without a list, or for a damaged one, which
    is a UserError with `intact`, as it has to be before anything is deleted or overwritten."""
    content = read_artefact(client, sweep.info.run_id, CELLS)
    try:
        listed = json.loads(content)["cells"] if content else []
        return {cell.hash: cell for cell in map(Cell.from_json, listed)}
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        if intact:
            raise UserError(f"run {sweep.info.run_id}: its artefact {CELLS} is damaged; run its sweep again") from None
        return dict(_leave_out(sweep.info.run_id, CELLS))


def read_artefact(client: "AnyClient", run_id: str, name: str) -> bytes | None:
    """Return a file of a run; None if it is known to have none of that name. Raises UserError if it cannot be read."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Path(client.download_artifacts(run_id, name, folder)).read_bytes()
        except FileNotFoundError:
            return None
        except _with_mlflow_errors(OSError) as error:  # MLflow's: it may be missing, or away
            with contextlib.suppress(Exception):
                if not isinstance(client, SqliteClient) and all(
                    file.path != name for file in client.list_artifacts(run_id)
                ):
                    return None
            raise UserError(
                f"MLFLOW_TRACKING_URI: run {run_id}: its file {name} cannot be read from "
                f"{redact(location.store_uri())}: {redact(join_lines(error))}"
            ) from error


def _leave_out(run_id: str, name: str) -> list[Any]:
    warn_once(f"run {run_id}: its artefact {name} is damaged and left out; run its sweep again")
    return []


def read_trials(client: "AnyClient", run_id: str) -> "pd.DataFrame":
    """Return what Tune says of a sweep's trials, as its own run has it; empty without any, or for a damaged table."""
    import pandas as pd  # here: most readers need none

    content, types = read_artefact(client, run_id, TRIALS), {TRIAL_CELL: str, "trial_id": str}
    try:
        trials = pd.DataFrame() if content is None else pd.read_csv(io.BytesIO(content), dtype=types)
    except ValueError:  # pandas' own errors are such
        trials = pd.DataFrame(_leave_out(run_id, TRIALS))
    return trials if TRIAL_CELL in trials else pd.DataFrame(columns=[*types])


def read_sweep_file(client: "AnyClient", sweep: "AnyRun") -> str:
    """Return the sweep's file as its own run has it; empty if it has none."""
    return (read_artefact(client, sweep.info.run_id, SWEEP_FILE) or b"").decode(errors="replace")


def format_counts(counts: Mapping[Status, int]) -> str:
    """Return the tag of a sweep's run that counts its cells: `1 diverged, 27 finished`."""
    return ", ".join(f"{number} {status}" for status, number in sorted(counts.items()) if number)


def find_runs(client: "AnyClient", experiment: str, cells: Iterable[str]) -> "Iterator[AnyRun]":
    """Yield all runs of these cells, superseded ones included, in the cells' order, a cell's newest first.

    A server is asked cell by cell, for several at once; a file for many in one query, as each query goes through all
    cells.
    """
    if isinstance(client, SqliteClient):
        listed = list(cells)
        for start in range(0, len(listed), AT_ONCE):
            some = listed[start : start + AT_ONCE]
            quoted = "', '".join(some)  # not `repr`, which escapes what a tag can hold
            found = search(client, experiment, f"tags.`fedray.cell` IN ('{quoted}')")
            yield from sorted(found, key=lambda run: some.index(run.data.tags["fedray.cell"]))
        return

    def ask(cell: str) -> "list[AnyRun]":
        return list(search(client, experiment, f"tags.`fedray.cell` = '{cell}'"))

    if not location.is_server(location.store_uri()):
        for cell in cells:
            yield from ask(cell)
        return
    with ThreadPoolExecutor(QUERIES, "queries") as pool:
        for runs in pool.map(ask, cells):
            yield from runs


def pick_best(runs: "Iterable[AnyRun]") -> "dict[str, AnyRun]":
    """Map each cell hash to the run that counts, of runs with the newest first: of the best status the newest."""
    best: dict[str, AnyRun] = {}
    for run in runs:
        if run.data.tags.get("fedray.status") == SUPERSEDED or not (cell := _get_name(run, "fedray.cell")):
            continue
        if cell not in best or read_status(run).rank < read_status(best[cell]).rank:
            best[cell] = run
    return best


def read_metrics(run: "AnyRun") -> dict[str, float]:
    """Return a run's latest metrics under the names that tables use, without the prefix of summaries."""
    return {name.removeprefix(SUMMARY): bound(run.info.run_id, name, v) for name, v in run.data.metrics.items()}


def bound(run_id: str, metric: str, value: float) -> float:
    """Return a metric's value; one whose sums overflow, which no run of fedray logs, is undefined, with a line."""
    if abs(value) <= LARGEST:
        return value
    if value == value:
        warn_once(f"run {run_id}: {metric} is {value:.3g}, which is taken as undefined")
    return math.nan


def read_status(run: "AnyRun") -> Status:
    """Return the status that a run's tag holds."""
    return Status.parse(run.data.tags.get("fedray.status"))


def find_records(client: "AnyClient", experiment: str, cells: Iterable[str]) -> dict[str, Record]:
    """Return cell hash -> record of the run that counts, of the cells that have one."""
    return {cell: read_record(run) for cell, run in pick_best(find_runs(client, experiment, cells)).items()}


def read_record(run: "AnyRun") -> Record:
    """Return what the store has of a cell's run: how it ended, its latest metrics and its tags.

    MLflow's latest value of a metric by round may be of an earlier round than the last one, where it is undefined: NaN.
    A metric that you have logged stays: its time is not the run's start plus the round, as the tracker's are.
    """
    tags, hashes, status, metrics = run.data.tags, ("theta_sha256", "state_sha256"), read_status(run), read_metrics(run)
    start, logged = run.info.start_time or 0, [] if isinstance(run, StoredRun) else run.data.to_proto().metrics
    own = run.by_round if isinstance(run, StoredRun) else {m.key for m in logged if m.timestamp == start + m.step}
    by_round = {name for name in own if not name.startswith(SUMMARY) and name not in UNSUMMARISED}
    earlier = {name for name in by_round if status is Status.FINISHED and f"{FINAL}{name}" not in metrics}
    return Record(
        Ending(status, tags.get("fedray.message", ""), stopper=tags.get("fedray.stopper", "")),
        totals=metrics | dict.fromkeys(earlier, math.nan),
        hashes={name: tags[f"fedray.{name}"] for name in hashes if f"fedray.{name}" in tags},
        run_id=run.info.run_id,
        start=start,
        tags=tags,
    )


def get_label(run: "AnyRun") -> str:
    """Return the label of a cell's run, whose name begins with what differs in its sweep."""
    setting, seed = run.data.tags.get(SETTING), run.info.run_name.rpartition(" ")[2]
    return run.info.run_name if setting is None else f"{setting} {seed}" if re.fullmatch(r"s\d+", seed) else setting


def find_unlisted(client: "AnyClient", experiment: str, sheet: Sheet, intact: bool = False) -> "dict[str, AnyRun]":
    """Map each cell that ran under a sweep's name to the run that counts, unless the sheet or another sweep has it.

    Such a cell ran before the sweep's file was changed, or from another file of that name. intact: as for `read_cells`.
    """
    query = f"{IS_CELL} AND tags.`fedray.sweep` = '{sheet.name}'"
    left = {cell: run for cell, run in pick_best(search(client, experiment, query)).items() if cell not in sheet.cells}
    for name, run in find_sweeps(client, experiment).items() if left else ():
        if name != sheet.name:
            for cell in read_cells(client, run, intact):
                left.pop(cell, None)
    return left


def read_records(cells: Iterable[str]) -> dict[str, Record]:
    """Return `find_records` before anything is written; empty if there is no store yet. Raises UserError."""
    return _ask(lambda client, experiment: find_records(client, experiment, cells), {})


def count_unlisted(sheet: Sheet) -> int:
    """Return how many of `find_unlisted` have finished; 0 if there is no store yet, or, with a line, if it or another
    sweep's list cannot be read."""
    nothing: dict[str, AnyRun] = {}
    try:
        unlisted = _ask(lambda client, experiment: find_unlisted(client, experiment, sheet), nothing)
    except UserError as error:
        warn_once(f"{sheet.name}: finished cells of this name that are not among these are not counted: {error}")
        return 0
    return sum(read_status(run) is Status.FINISHED for run in unlisted.values())


def describe_unlisted(sweep: str, count: int) -> str:
    """Return a line about so many finished cells of a sweep's name that are not among its cells; empty for none."""
    if not count:
        return ""
    verb = "is" if count == 1 else "are"
    return (
        f"{sweep}: {format_count(count, 'finished cell')} of this name {verb} not among these; "
        "tables leave them out: the file, a plug-in's source or the device has changed, or another file has its name; "
        f"another `name` for one of them keeps both, and `fedray rm {sweep} --unlisted` deletes the old ones"
    )


def _ask(question: "Callable[[AnyClient, str], T]", otherwise: T) -> T:
    """Return what a question about the store and its experiment gives; `otherwise` if there is no store yet."""
    try:
        client, experiment = open_reader()
    except NotStored:
        return otherwise
    try:
        return question(client, experiment)
    except _with_mlflow_errors() as error:
        raise UserError(f"{location.UNUSABLE_STORE}: {redact(join_lines(error))}") from None


def _with_mlflow_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return these exceptions and, if MLflow is imported, the one that its client raises."""
    module = sys.modules.get("mlflow.exceptions")
    return others if module is None else (*others, module.MlflowException)


def is_transient(error: Exception) -> bool:
    """Return True if another attempt may succeed, at a store that has accepted this process before.

    That is so if the store cannot be reached, is overloaded or locked, if another process was faster, or if a proxy or
    login service in front of it answers 401, 403 or 404 for a while. If MLflow itself says that a run or an experiment
    is gone, that is final.
    """
    if isinstance(error, _with_mlflow_errors()):
        from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode

        answer: Any = error
        if answer.error_code == ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            return False
        if "database is locked" in str(error) or "UNIQUE constraint failed" in str(error):
            return True  # SQLite, when several processes write: another attempt finds what the first one has written
        status = answer.get_http_status_code()
        return bool(status >= 500 or status in (401, 403, 404, 429))
    if isinstance(error, UserError):  # SqliteClient's, `read_artefact`'s, or one in place of MLflow's
        cause = error.__cause__ if isinstance(error.__context__, OSError) else error.__context__
        return "database is locked" in str(error) or (isinstance(cause, Exception) and is_transient(cause))
    return isinstance(error, OSError)  # the requests library's errors, which MLflow passes on for artefacts


@contextlib.contextmanager
def translate_refusals() -> Iterator[None]:
    """Turn final refusals of the store into a UserError; transient errors are raised unchanged."""
    try:
        yield
    except _with_mlflow_errors() as error:
        if is_transient(error):
            raise
        raise UserError(f"MLFLOW_TRACKING_URI: the store refuses a request: {redact(join_lines(error))}") from None


def read_sheet(client: "AnyClient", name: str, parent: "AnyRun", with_file: bool = False) -> Sheet:
    """Return a sweep, given its own run; `with_file` raises UserError for a damaged list of cells, too."""
    cells = read_cells(client, parent, intact=with_file)
    records = find_records(client, parent.info.experiment_id, cells)
    file = read_sweep_file(client, parent) if with_file else ""
    return Sheet(name, cells, records, str(parent.data.tags.get(DESCRIPTION, "")), file)


def describe_unknown_sweep(name: str, known: Iterable[str]) -> UserError:
    """Return the error for a sweep that the store does not know, or for a file's name in place of a sweep's."""
    names = set(known)
    if is_yaml(name):
        here = ", ".join(sorted(names)) or "none"
        return UserError(f"sweep: found {name}, a file; the `name` in it is required; here are {here}")
    if not names:
        return UserError(f"sweep: {name!r} is not in this store, which holds no sweep at all")
    return unknown("sweep", name, names, "`fedray status`")


def read_stored_sweep(name: str) -> Sheet:
    """Return a sweep of the store with its file, by its name. Raises UserError for a name that it does not know."""
    client, experiment = open_reader()
    parents = find_sweeps(client, experiment)
    if name not in parents:
        raise describe_unknown_sweep(name, parents)
    return read_sheet(client, name, parents[name], with_file=True)


def find_deletable_runs(name: str, cell: str | None = None, unlisted: bool = False) -> tuple[dict[str, str], int]:
    """Return the runs that `fedray rm` deletes, and how many cells that another sweep shares have been run.

    Id of a run -> what it is, first the sweep's own run, then `HASH  LABEL`: those of its cells, superseded ones and
    cells that its file no longer lists included, without the cells that another sweep lists.
    """
    client, experiment = open_store()
    sweeps = find_sweeps(client, experiment)
    if name not in sweeps:
        if is_yaml(name):
            raise describe_unknown_sweep(name, sweeps)
        if (found := find_run(client, name)) is None:
            raise UserError(f"rm: {name!r} is neither a sweep nor the id of a run in this store")
        if found.data.tags.get("fedray.kind") != "cell" or found.info.lifecycle_stage != "active":
            raise UserError(f"rm: {name} is not the id of a run that can be deleted")
        if cell is not None or unlisted:
            raise UserError(f"rm: --{'cell' if cell is not None else 'unlisted'}: {name} is a run, not a sweep")
        return {name: f"{found.data.tags.get('fedray.cell', '')}  {get_label(found)}"}, 0
    others = {other: read_cells(client, sweeps[other], intact=True) for other in sorted(sweeps.keys() - {name})}
    shared = {hash: other for other, cells in others.items() for hash in cells}
    listed = Sheet(name, read_cells(client, sweeps[name], intact=unlisted))
    earlier = find_unlisted(client, experiment, listed, intact=True)
    cells = {} if unlisted else dict(listed.cells)
    cells |= {hash: Cell(hash, get_label(run), {}) for hash, run in earlier.items()}
    if cell is not None:
        chosen = Sheet(name, cells).select(cell, "rm: --cell")
        if both := next((one for one in chosen if one in shared), None):
            raise UserError(
                f"rm: --cell: {cells[both].label} ({both}) is a cell of {shared[both]}, too, and stays for it"
            )
        cells = {one: cells[one] for one in chosen}
    runs = {one: [run.info.run_id for run in find_runs(client, experiment, [one])] for one in cells}
    of_cells = {run: f"{one}  {cells[one].label}" for one in cells if one not in shared for run in runs[one]}
    whole = dict[str, str]()
    if cell is None and not unlisted:
        whole[sweeps[name].info.run_id] = "the sweep's own run"
        for run in search(client, experiment, select_means(name)):
            whole[run.info.run_id] = f"mean of {run.data.tags.get(SETTING, '')}"
    return whole | of_cells, sum(bool(runs[one]) for one in cells if one in shared)
