"""A sweep as one file: its cells with settings, curves, artefacts and hashes, to be merged into another store.

The file is a zip: `sweep.json` (the sweep's name, description and cells; `tune`: the same of its tune stage),
`sweep.yaml` (the sweep's file), and for each cell that has a run `runs/CELL/run.json` (status, tags, parameters,
metrics with all their steps) and `runs/CELL/artifacts/...`. A run's split (`partition.npz` and its picture) is
`splits/SHA256` instead, once for all runs that share it. Archives of older versions also hold `environments/` and
members for readers, which an import passes over. The archive of a sweep with blocks, NAME/0, NAME/1, ..., holds one
such zip for each, `0.zip`, `1.zip`, ..., stored uncompressed and then compressed as a whole: runs are alike.

Before the store is touched, the names, sizes and digests of all members are checked. Nothing in an archive is executed
or unpickled.
"""

import contextlib
import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from pydantic import BaseModel, Field, ValidationError, field_validator

from fedray.cells.cell import Cell, ListedCell, SweepName, flatten
from fedray.cells.sheet import Sheet
from fedray.cells.status import SUPERSEDED, Status
from fedray.common.errors import UserError, escape, join_lines, name_place, redact, truncate_repr, warn_once
from fedray.common.whole_files import open_file
from fedray.common.yaml_files import parse_yaml
from fedray.components.base import describe
from fedray.components.identity import hash_of
from fedray.tracking import store
from fedray.tracking.tracker import Tracker, log_dataset

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient

FORMAT = 2
"""Increment when older versions of fedray could not read a new archive."""
FILE = 4 << 30
"""Maximum size of an archive in bytes."""
JSON = 64 << 20
"""Maximum size of an unpacked JSON member in bytes."""
ARTIFACT = 256 << 20
"""Maximum size of any other unpacked member in bytes."""
UNPACKED = 8 << 30
"""Maximum size of all unpacked members together in bytes, once each run has its copy of its split."""

HASH = r"[0-9a-f]{16}"
DIGEST = r"[0-9a-f]{64}"
PART = r"\w[\w.+=@ -]{0,99}"
"""One part of a member's name. It begins with a letter, a digit or `_`, so it is never empty, `.` or `..`."""
UNREAD = (
    rf"environments/{HASH}\.json|README\.md|citations\.bib|ro-crate-metadata\.json|"
    rf"tables/{PART}\.(?:md|tex|csv)|figures/{PART}\.(?:png|pdf)"
)
"""Members of older versions' archives that an import passes over."""
MEMBER = re.compile(
    rf"sweep\.(?:json|yaml)|{UNREAD}|splits/{DIGEST}|"
    rf"runs/({HASH})/(?:run\.json|artifacts((?:/{PART}){{1,8}}))",
    re.ASCII,
)
"""The whole name of a member."""
SPLITS = ("partition.npz", "partition.png")
"""Artefacts of a run with its split."""
MLFLOW_TAGS = tuple(
    f"mlflow.{name}"
    for name in ("runName", "runColor", "user", "source.name", "source.type", "source.git.commit", "note.content")
)
"""MLflow's own tags that an archive carries; the others name runs of its own store."""
BLOCK = re.compile(r"\d{1,4}\.zip", re.ASCII)
"""The whole name of a member of an archive of blocks."""
UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, ValueError, RuntimeError)
"""Exceptions that `zipfile` raises for files that are damaged, encrypted or packed in an unknown way."""

M = TypeVar("M", bound=BaseModel)
Time = Annotated[int, Field(ge=0, lt=4_102_444_800_000)]
"""Milliseconds since 1970, before 2100."""


class ArchivedSweep(BaseModel):
    """The member `sweep.json`, and in it the tune stage."""

    format: int = FORMAT
    name: SweepName
    description: str
    cells: list[ListedCell]
    tune: "ArchivedSweep | None" = None

    @field_validator("format")
    @classmethod
    def _refuse_later(cls, found: int) -> int:
        if found > FORMAT:
            raise UserError(f"it was made by a later version of fedray (format {found}, this one reads up to {FORMAT})")
        return found

    @property
    def stages(self) -> list[Sheet]:
        """The tune stage, if there is one, and the sweep itself."""
        cells = {cell.hash: cell for cell in self.cells}
        return [*([] if self.tune is None else self.tune.stages), Sheet(self.name, cells, description=self.description)]


class ArchivedRun(BaseModel):
    """The member `run.json` of a cell.

    Attributes:
        splits: file of the run's split -> digest of the member of `splits/` with its content.
        metrics: name -> points of value, time and step.
    """

    name: str
    status: Status
    start: Time
    end: Time | None
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, list[tuple[float, Time, Annotated[int, Field(ge=0, lt=2**31)]]]]
    splits: dict[str, str] = {}


class Archive:
    """An archive that passed every check.

    Attributes:
        sweep: its name, description and cells.
        file: the sweep's file as text; empty if it is not there.
        artifacts: hash of each cell that has a run -> paths of its artefacts below the run's folder.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.sweep = self._parse("sweep.json", ArchivedSweep)  # first: a later version has other members, too
        self.artifacts = _check_members(archive)
        self.file = archive.read(store.SWEEP_FILE).decode() if store.SWEEP_FILE in archive.NameToInfo else ""
        self._check_runs()
        if damaged := archive.testzip():
            raise UserError(f"{damaged} is damaged")

    def read_run(self, cell: str) -> ArchivedRun:
        """Return the run of a cell."""
        return self._parse(f"runs/{cell}/run.json", ArchivedRun)

    def unpack(self, cell: str, folder: Path) -> None:
        """Write the artefacts of a cell's run into an empty folder."""
        root = folder.resolve()
        for file, digest in self.read_run(cell).splits.items():
            (root / file).write_bytes(self._archive.read(f"splits/{digest}"))
        for path in self.artifacts[cell]:
            name, target = f"runs/{cell}/artifacts/{path}", (root / path).resolve()
            if not target.is_relative_to(root):  # names are checked already; this holds even if that check is wrong
                raise UserError(f"{name} would be written elsewhere")
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._archive.open(name) as packed, target.open("xb") as unpacked:
                shutil.copyfileobj(packed, unpacked)

    def _check_runs(self) -> None:
        """Refuse a cell under a wrong hash, runs of other cells, and runs that have not ended.

        Refuse a split that is missing, unused, under a wrong digest, or too large once each run has its copy.
        """
        cells = {hash: cell for stage in self.sweep.stages for hash, cell in stage.cells.items()}
        for listed, cell in cells.items():
            if (found := hash_of(cell.identity)) != listed:
                raise UserError(f"the hash {truncate_repr(listed)} is not that of its identity, which is {found}")
        if foreign := self.artifacts.keys() - cells.keys():
            raise UserError(f"runs/{min(foreign)}: sweep.json lists no such cell")
        splits: list[tuple[str, str]] = []
        for cell_hash in self.artifacts:
            run = self.read_run(cell_hash)
            if run.status.rank > Status.INTERRUPTED.rank:
                raise UserError(f"runs/{cell_hash}: found {run.status}; an archive holds runs that have ended")
            splits += run.splits.items()
        if strange := {file for file, _ in splits} - set(SPLITS):
            raise UserError(f"splits: found {truncate_repr(min(strange))}; {' and '.join(SPLITS)} are allowed")
        named = [f"splits/{digest}" for _, digest in splits]
        members = {name for name in self._archive.namelist() if name.startswith("splits/")}
        if wrong := members ^ set(named):
            what = "no run names it" if wrong <= members else "there is no such member"
            raise UserError(f"{truncate_repr(min(wrong))}: {what}")
        _check_size("the splits of all runs", sum(self._archive.getinfo(name).file_size for name in named), UNPACKED)
        for name in members:
            if hashlib.sha256(self._archive.read(name)).hexdigest() != name.removeprefix("splits/"):
                raise UserError(f"{name}: its content has another digest")

    def _parse(self, member: str, model: type[M]) -> M:
        try:
            _check_size(member, self._archive.getinfo(member).file_size, JSON)
            return model.model_validate_json(self._archive.read(member))
        except KeyError:
            raise UserError(f"there is no {member} in it") from None
        except ValidationError as error:
            raise UserError(f"{member}: {escape(str(describe(error)))[:300]}") from None


@contextlib.contextmanager
def open_archives(file: Path, failure: str) -> Iterator[list[Archive]]:
    """Open an archive, or each that an archive of blocks holds, and check all of it, for the duration of a block."""
    with contextlib.ExitStack() as stack:
        with name_place(failure):
            try:
                archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_file(file, FILE))))
                _check_unpacked([archive])
                blocks = [name for name in archive.namelist() if BLOCK.fullmatch(name)]
                opened = [archive]
                if blocks and blocks == archive.namelist():
                    if len(set(blocks)) < len(blocks):
                        raise UserError("it holds a block twice")
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedray-"))
                    opened = [stack.enter_context(zipfile.ZipFile(archive.extract(block, folder))) for block in blocks]
                    _check_unpacked(opened)
                checked = [Archive(one) for one in opened]
            except OSError as error:
                raise UserError(str(error.strerror or error)) from None
            except UNREADABLE as error:
                raise UserError(escape(join_lines(error))) from None
        yield checked


def _check_members(archive: zipfile.ZipFile) -> dict[str, list[str]]:
    """Refuse members that `export` does not write, and return the `Archive.artifacts`."""
    artifacts: dict[str, list[str]] = {}
    names: set[str] = set()
    for member in archive.infolist():
        name, shown = member.orig_filename, truncate_repr(member.orig_filename)
        matched = MEMBER.fullmatch(name)
        if matched is None or name != member.filename:
            raise UserError(f"{shown} is not the name of a file that an archive holds")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise UserError(f"{shown} is not a regular file")
        cell, path = matched.groups()
        _check_size(shown, member.file_size, JSON if path is None else ARTIFACT)
        if name.lower() in names:
            raise UserError(f"{shown} is there twice, or but for capitals")
        names.add(name.lower())
        if cell is not None:
            artifacts.setdefault(cell, []).extend([] if path is None else [path.removeprefix("/")])
    return artifacts


def _check_unpacked(archives: list[zipfile.ZipFile]) -> None:
    members = (member for archive in archives for member in archive.infolist())
    _check_size("the unpacked archive", sum(member.file_size for member in members), UNPACKED)


def _check_size(what: str, size: int, most: int) -> None:
    if size > most:
        raise UserError(f"{what} has {size} bytes; at most {most} are allowed")


def export_sweep(name: str, file: Path) -> int:
    """Write a sweep into an archive: its cells, and the runs that have ended; return how many cells have one.

    A sweep with blocks, NAME/0, NAME/1, ..., is all of them. The file appears whole or not at all.
    """
    client, experiment = store.open_reader()
    blocks = store.find_blocks(client, experiment, [name])[name]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".export-") as folder:
            new = Path(folder) / file.name
            if blocks:
                count = 0
                with zipfile.ZipFile(new, "w", zipfile.ZIP_LZMA) as archive:
                    for number in blocks:
                        part = Path(folder) / f"block-{number}.zip"
                        count += _write(client, experiment, f"{name}/{number}", part, zipfile.ZIP_STORED)
                        archive.write(part, f"{number}.zip")
                        part.unlink()
            else:
                count = _write(client, experiment, name, new, zipfile.ZIP_DEFLATED)
            with open_archives(new, f"{name}: cannot be exported"):
                new.rename(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
    return count


def _write(client: "AnyClient", experiment: str, name: str, file: Path, compression: int) -> int:
    """Write one sweep into a file; return how many cells with a run it holds."""
    stage = f"{name}/tune"
    sweep = store.read_stored_sweep(name)
    tune = store.read_stored_sweep(stage) if stage in store.find_sweeps(client, experiment) else None
    records = (tune.records if tune else {}) | sweep.records
    records = {cell: record for cell, record in records.items() if record.ending.status is not Status.RUNNING}
    with zipfile.ZipFile(file, "w", compression) as archive:
        about = {"format": FORMAT, **sweep.to_json()} | ({"tune": tune.to_json()} if tune else {})
        archive.writestr("sweep.json", json.dumps(about))
        if sweep.file:
            archive.writestr(store.SWEEP_FILE, sweep.file)
        for cell, record in records.items():
            _pack(client, record.run_id, archive, f"runs/{cell}")
    return len(records)


@contextlib.contextmanager
def log_into_archive(name: str, file: Path) -> Iterator[None]:
    """Let this process log to a store of its own for the duration of a block, and pack the sweep in it afterwards."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    with tempfile.TemporaryDirectory(prefix="fedray-") as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        try:
            yield
        finally:
            try:
                if (Path(folder) / "mlflow.db").exists() and name in store.find_sweeps(*store.open_reader()):
                    export_sweep(name, file)
            finally:
                del os.environ["MLFLOW_TRACKING_URI"]
                os.environ |= {} if before is None else {"MLFLOW_TRACKING_URI": before}


def _is_carried(tag: str) -> bool:
    return not tag.startswith("mlflow.") or tag in MLFLOW_TAGS


def _pack(client: "AnyClient", run_id: str, archive: zipfile.ZipFile, folder: str) -> None:
    run = client.get_run(run_id)
    about: dict[str, Any] = {
        "name": run.info.run_name,
        "status": store.read_status(run),
        "start": run.info.start_time,
        "end": run.info.end_time,
        "tags": {key: value for key, value in run.data.tags.items() if _is_carried(key)},
        "params": dict(run.data.params),
        "metrics": {
            key: [[point.value, point.timestamp, point.step] for point in client.get_metric_history(run_id, key)]
            for key in run.data.metrics
        },
        "splits": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        try:
            top = Path(client.download_artifacts(run_id, "", scratch))
        except (MlflowException, OSError) as error:
            why = f"cannot be read: {redact(join_lines(error))}"
            why = f"are missing: there is no {error.filename}" if isinstance(error, FileNotFoundError) else why
            raise UserError(f"run {run_id}: its files in the store {why}") from None
        files = {path.relative_to(top).as_posix(): path for path in top.rglob("*") if path.is_file()}
        for name in SPLITS:
            if path := files.pop(name, None):
                content = path.read_bytes()
                about["splits"][name] = digest = hashlib.sha256(content).hexdigest()
                if f"splits/{digest}" not in archive.NameToInfo:
                    archive.writestr(f"splits/{digest}", content)
        archive.writestr(f"{folder}/run.json", json.dumps(about))
        for name, path in sorted(files.items()):
            if MEMBER.fullmatch(member := f"{folder}/artifacts/{name}"):
                archive.write(path, member)
            else:
                warn_once(f"run {run_id}: {truncate_repr(name)} is left out: no archive takes a file of this name")


def import_sweeps(file: Path) -> list[tuple[str, int, int, int]]:
    """Merge an archive into the store: a cell whose run here is as good as the archive's keeps it.

    Importing the same archive again changes nothing. The store is not touched before the whole archive is checked.
    Return, for the sweep or each of its blocks, its name, how many cells were added, how many were there already, and
    how many of these have trained another model here.
    """
    merged = []
    with open_archives(file, f"{file}: cannot be read as an archive of fedray") as archives:
        try:
            for archive in archives:
                counts = [_merge(archive, stage) for stage in archive.sweep.stages]
                added, there, other = (sum(each) for each in zip(*counts, strict=True))
                merged.append((archive.sweep.name, added, there, other))
        except (MlflowException, OSError) as error:
            raise UserError(
                f"MLFLOW_TRACKING_URI: the store cannot take {file}: {redact(join_lines(error))}; what it has taken "
                "stays, and the same command completes it"
            ) from None
    return merged


def _merge(archive: Archive, stage: Sheet) -> tuple[int, int, int]:
    """Merge one stage; return its counts, as `import_sweeps`."""
    tracker, sheet = Tracker(), replace(stage, file=archive.file)
    with_run = [cell for cell in stage.cells if cell in archive.artifacts]
    known = store.find_records(tracker.reader, tracker.experiment, with_run)
    if stage.name in store.find_sweeps(tracker.reader, tracker.experiment):
        there = store.read_stored_sweep(stage.name)
        sheet = replace(sheet, description=there.description)
        cells = {hash: _tell_apart(cell, there.cells.values()) for hash, cell in stage.cells.items()}
        sheet = replace(sheet, cells={**there.cells, **cells}, file=there.file or archive.file)
    parent = tracker.open_sweep(sheet)
    added = other = 0
    for cell in with_run:
        run = archive.read_run(cell)
        if cell not in known or run.status.rank < known[cell].ending.status.rank:
            _unpack(tracker, archive, sheet.cells[cell], run, parent)
            added += 1
        elif theta := known[cell].hashes.get("theta_sha256"):
            other += run.tags.get("fedray.theta_sha256", theta) != theta
    sheet.records.update(store.find_records(tracker.reader, tracker.experiment, sheet.cells))
    tracker.close_sweep(parent, sheet.counts)
    tracker.close()
    return added, len(with_run) - added, other


def _tell_apart(cell: Cell, others: Iterable[Cell]) -> Cell:
    """Return a cell whose label says how it differs from another one of this label, or else is as it was."""
    other = next((other for other in others if other.label == cell.label and other.hash != cell.hash), None)
    if other is None:
        return cell
    mine, theirs = (flatten(one.identity) | flatten({**one.config, "runtime": {}}) for one in (cell, other))
    keys = [key for key in mine | theirs if mine.get(key) != theirs.get(key)]
    words = [f"{key.rpartition('.')[2]}={str(mine.get(key, '-'))[:12]}" for key in keys]  # of a digest its beginning
    return replace(cell, label=escape(" ".join([cell.setting, *words, f"s{cell.get('seed')}"])))


def _unpack(tracker: Tracker, archive: Archive, cell: Cell, run: ArchivedRun, parent: str) -> None:
    """Make a run of the store, which counts once it is whole; what could not be made whole is deleted."""
    client = tracker.client
    for left in store.find_runs(tracker.reader, tracker.experiment, [cell.hash]):
        if left.data.tags.get("fedray.status") == SUPERSEDED and left.info.status == "RUNNING":  # of a killed import
            client.delete_run(left.info.run_id)
    tags = {key: value for key, value in run.tags.items() if _is_carried(key)} | {MLFLOW_PARENT_RUN_ID: parent}
    tags |= {"fedray.kind": "cell", "fedray.cell": cell.hash, "fedray.status": SUPERSEDED}
    tags |= {store.SETTING: cell.setting}
    new = client.create_run(tracker.experiment, run.start, tags, run.name).info.run_id
    try:
        metrics = [Metric(key, *point) for key, points in run.metrics.items() for point in points]
        client.log_batch(new, metrics, [Param(key, value) for key, value in run.params.items()])
        with tempfile.TemporaryDirectory() as scratch:
            archive.unpack(cell.hash, Path(scratch))
            client.log_artifacts(new, scratch)
            with contextlib.suppress(UserError, FileNotFoundError, UnicodeError):  # a damaged one says nothing
                text = (Path(scratch) / "config.yaml").read_text(encoding="utf-8")
                log_dataset(client, new, parse_yaml(text, "config.yaml"))
        client.set_terminated(new, "FINISHED" if run.status.is_success else "FAILED", run.end)
        client.log_batch(new, tags=[RunTag("fedray.status", run.status)])
    except BaseException:
        client.delete_run(new)
        raise
