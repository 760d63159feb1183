"""A run's state on disk: written atomically, checked when read, never unpickled.

A cell's directory holds two files per checkpoint after round r: `server-r.safetensors` (theta, buffers, server vectors)
and, written last and by atomic rename, `checkpoint-r.json`, which names every file it needs with its SHA-256. A
client's state is a file `client-i-a.safetensors`, where a is the round that last changed it. It is written once, by the
process that holds the state, and read when the client is drawn again. The last two checkpoints are kept, with the
client files that they name.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from safetensors import SafetensorError

from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.common.whole_files import write_file
from fedray.engine.disk.client_files import (
    StoredState,
    Version,
    Written,
    name_file,
    pack,
    read,
    retry,
    unpack,
    write_states,
)
from fedray.engine.state import ClientState, State, StateDamaged, StateRef

log = logging.getLogger("fedray")
KEPT = 2
COPIED = ("round", "seconds", "history", "dropped", "tables", "evaluation_seconds", "sent", "frozen")
"""What a manifest has of a state as it is."""
FORMAT = 1
"""Format of the manifest. Increment when this version could not read the new one."""
DAMAGE = (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)
"""Exceptions from files that are missing, malformed, or not written by this module."""
OURS = (
    r"(checkpoint-\d+\.json|server-\d+\.safetensors|client-\d+-\d+\.safetensors)(\.\d+\.tmp)?"
    r"|rows\.jsonl\.\d+\.tmp"
)
"""Names of the files that a checkpoint or a killed process may leave behind; `rows.jsonl` itself stays."""

Writer = Callable[[str, Sequence[Version]], dict[int, Written]]
"""Writes states into a directory: `client_files.write_states`, or a backend's, which writes where the states are."""


Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class Manifest(BaseModel):
    """The JSON file of a checkpoint: whose state it is, and every file that it needs.

    cell: hash of the run's identity, which its seed and data are part of. server, state_sha256, frozen: hashes of the
    file of the global state, of the whole state, and of the frozen weights, which no file holds. states: `dropped` once
    the clients' states of a finished run are removed.
    """

    model_config = ConfigDict(strict=True, frozen=True, ser_json_inf_nan="constants")

    format: int
    cell: str
    round: Count
    seconds: Seconds
    history: list[dict[str, int | float]]
    dropped: Count
    tables: dict[str, dict[str, list[int | float]]]
    evaluation_seconds: Seconds
    sent: tuple[Count, Count]
    server: str
    clients: dict[int, Written]
    state_sha256: str
    states: str = "kept"
    frozen: str = ""

    @model_validator(mode="after")
    def _check_history(self) -> "Manifest":
        evaluated = [row.get("round", 0) for row in self.history]
        if evaluated != sorted(set(evaluated)) or not all(0 < round <= self.round for round in evaluated):
            raise ValueError(f"its evaluated rounds are {evaluated}; it is of round {self.round}")
        return self

    @property
    def files(self) -> set[str]:
        """Return the names of the files that the checkpoint needs besides its manifest."""
        clients = {name_file(i, known.active) for i, known in self.clients.items() if self.states != "dropped"}
        return clients | {f"server-{self.round}.safetensors"}


class Checkpoints:
    """The checkpoints of one cell in a directory; each manifest names the cell's hash."""

    def __init__(self, directory: Path, cell: str = "") -> None:
        self.directory, self.cell = directory, cell
        # The next save relies only on files that this process has read or written, and so knows to exist.
        self._before: dict[int, Written] = {}
        self._damaged: set[int] = set()  # rounds that `load` has skipped

    def list_rounds(self) -> list[int]:
        """Return the rounds that have a manifest, ascending. Raises UserError if the directory cannot be read."""
        try:
            found = retry(lambda: os.listdir(self.directory), self.directory)
        except FileNotFoundError:
            return []
        names = (re.fullmatch(r"checkpoint-(\d+)\.json", name) for name in found)
        return sorted(int(match[1]) for match in names if match)

    def save(self, state: State, writer: Writer = write_states) -> None:
        """Write the state; only clients that changed since the previous checkpoint are written.

        Raises OSError if a file cannot be written (disk full, say): the previous checkpoint then stays as it was.
        Raises UserError if a file cannot be read at the moment; then nothing is removed.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        clients = {i: known for i, known in self._before.items() if state.active.get(i) == known.active}
        changed = [Version(i, state.active[i], s) for i, s in state.clients.items() if i not in clients]
        try:
            clients |= writer(str(self.directory), changed) if changed else {}
            for i, _, one in changed:
                if isinstance(one, StateRef) and one.sha256 is None:
                    one.sha256 = clients[i].sha256  # computed once
            server = {"theta": state.theta, "buffers": state.buffers}
            server |= {f"server/{name}": v for name, v in state.server.items()}
            content = pack(server)
            write_file(self.directory / f"server-{state.round}.safetensors", content)
            stored = {i: StoredState("", clients[i].sha256) for i in state.clients}
            manifest: dict[str, Any] = {
                **{name: getattr(state, name) for name in COPIED},
                "format": FORMAT,
                "cell": self.cell,
                "server": hashlib.sha256(content).hexdigest(),
                "clients": clients,
                "state_sha256": replace(state, clients=stored).digest(),
            }
            self._write_manifest(Manifest.model_construct(**manifest))
        except OSError:
            self._prune(state.round)  # files that no manifest names only fill the disk
            raise
        self._before = clients
        self._prune(state.round)

    def load(self) -> State | None:
        """Return the newest intact state, or None; clients' states are read and checked when they are needed.

        A damaged checkpoint is logged and skipped. Raises UserError if a checkpoint was written by a later version, a
        file cannot be read at the moment, or the rounds belong to another cell.
        """
        self.refuse_other_cell()
        for round in reversed(self.list_rounds()):
            try:
                return self._load(round)
            except DAMAGE as error:
                self._warn(round, error)
                self._damaged.add(round)
        return None

    def refuse_other_cell(self) -> None:
        """Raise UserError if the newest manifest names another cell: its rounds belong to that cell."""
        for round in reversed(self.list_rounds()):
            with contextlib.suppress(*DAMAGE):
                if (cell := self._load_manifest(round).cell) != self.cell:
                    raise UserError(
                        f"checkpoints: {self.directory} holds checkpoints of another configuration, seed or data set "
                        f"(cell {cell}; this one is {self.cell}); move or remove it, or choose another directory"
                    )
                return

    def fall_back(self, damaged: StateDamaged) -> State | None:
        """Remove the checkpoints that name a client's damaged file, then load as `load` does."""
        path, reason = damaged.args
        for round in self.list_rounds():
            with contextlib.suppress(*DAMAGE):
                if Path(path).name in self._load_manifest(round).files:
                    self._warn(round, reason)
                    manifest = self.directory / f"checkpoint-{round}.json"
                    retry(manifest.unlink, manifest)
        self._before = {}
        return self.load()

    def drop_clients(self) -> None:
        """Remove the clients' states of a finished run; keep model, history and hashes of the newest checkpoint."""
        for round in reversed(self.list_rounds()):
            with contextlib.suppress(*DAMAGE):
                self._write_manifest(self._load_manifest(round).model_copy(update={"states": "dropped"}))
                self._prune(round, kept=1)
                return

    def _warn(self, round: int, reason: object) -> None:
        path = self.directory / f"checkpoint-{round}.json"
        log.warning("checkpoint %s is damaged (%s); falling back to the one before", path, reason)

    def _load(self, round: int) -> State:
        manifest = self._load_manifest(round)
        if manifest.cell != self.cell:
            raise ValueError(f"it is of the cell {manifest.cell}, not {self.cell}")
        clients, dropped = manifest.clients, manifest.states == "dropped"
        stored: dict[int, ClientState] = {}
        for i, known in clients.items():
            path = self.directory / name_file(i, known.active)
            if not dropped and retry(path.stat, path).st_size != known.nbytes:
                raise ValueError(f"{path.name} does not have the size it was written with")
            stored[i] = StoredState(str(path), known.sha256)
        server = unpack(self._read(f"server-{round}.safetensors", manifest.server))
        state = State(
            theta=server.pop("theta"),
            buffers=server.pop("buffers"),
            server=Vectors({name.removeprefix("server/"): v for name, v in server.items()}),
            clients=stored,
            active={i: known.active for i, known in clients.items()},
            **{name: getattr(manifest, name) for name in COPIED},
        )
        if state.digest() != manifest.state_sha256:
            raise ValueError("the state does not have the hash it was saved with")
        self._before = {} if dropped else clients
        return state

    def _load_manifest(self, round: int) -> Manifest:
        path = self.directory / f"checkpoint-{round}.json"
        document = json.loads(read(path))
        if hashlib.sha256(document["manifest"].encode()).hexdigest() != document["sha256"]:
            raise ValueError("the manifest does not have the checksum it was written with")
        if (version := json.loads(document["manifest"])["format"]) > FORMAT:
            raise UserError(
                f"{path}: written by a later fedray (format {version}, this one reads up to {FORMAT}); use that "
                "version, or another FEDRAY_STORAGE"
            )
        manifest = Manifest.model_validate_json(document["manifest"])
        if manifest.round != round:
            raise ValueError(f"it is of round {manifest.round}")
        return manifest

    def _write_manifest(self, manifest: Manifest) -> None:
        body = manifest.model_dump_json()
        document = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}
        write_file(self.directory / f"checkpoint-{manifest.round}.json", json.dumps(document).encode())

    def _read(self, name: str, digest: str) -> bytes:
        content = read(self.directory / name)
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{name} does not have the checksum it was written with")
        return content

    def _prune(self, newest: int, kept: int = KEPT) -> None:
        """Remove all but the last intact checkpoints up to the round `newest`, with the files that they need.

        An intact checkpoint of a later round stays: another process has made it while this one was suspended.
        """
        needed, whole = set[str](), 0
        self._damaged.discard(newest)
        for round in reversed(self.list_rounds()):
            if round in self._damaged:
                continue
            try:
                files = self._load_manifest(round).files
            except DAMAGE:
                continue
            needed |= files | {f"checkpoint-{round}.json"}
            whole += round <= newest
            if whole == kept:
                break
        for path in self.directory.iterdir():
            if re.fullmatch(OURS, path.name) and path.name not in needed:
                path.unlink(missing_ok=True)
