"""A run's state on disk: written atomically, checked when read, never unpickled.

A cell's directory holds, per checkpoint after round r: `clients-r.safetensors` (the states that changed since the
checkpoint before), `server-r.safetensors` (theta, buffers, server vectors) and, last and by atomic rename,
`checkpoint-r.json`, which names every file it needs with its SHA-256. The last two checkpoints are kept, and the client
files that they still name.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedray.common.vectors import Vectors
from fedray.engine.state import State

log = logging.getLogger("fedray")
KEPT = 2
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)
"""What reading a file raises that this module did not write, or not so."""


class Checkpoints:
    """The checkpoints of one cell."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # What the next save may build on: only what this process has read or written and so knows to be whole.
        self._before: dict[str, Any] | None = None

    def rounds(self) -> list[int]:
        """Rounds of which a manifest exists, ascending."""
        paths = self.directory.glob("checkpoint-*.json")
        names = (re.fullmatch(r"checkpoint-(\d+)\.json", path.name) for path in paths)
        return sorted(int(match[1]) for match in names if match)

    def save(self, state: State) -> None:
        """Write the state. Raises OSError (disk full, say); the checkpoint before then stays as it was."""
        self.directory.mkdir(parents=True, exist_ok=True)
        before = self._before
        old: dict[int, int] = before["clients"] if before else {}
        # A state whose client has not been active since the last checkpoint is in a file already.
        last = before["round"] if before else 0
        changed = [i for i in state.clients if i not in old or state.active[i] > last]
        homes = {i: old[i] for i in state.clients if i in old} | dict.fromkeys(changed, state.round)
        files = {
            name: digest
            for name, digest in (before["files"] if before else {}).items()
            if name in {f"clients-{home}.safetensors" for home in homes.values()}
        }
        try:
            if changed:
                tensors = {f"{i}/{name}": v for i in changed for name, v in state.clients[i].items()}
                files |= self._write(f"clients-{state.round}.safetensors", save(_own(tensors)))
            server = {"theta": state.theta, "buffers": state.buffers}
            server |= {f"server/{name}": v for name, v in state.server.items()}
            files |= self._write(f"server-{state.round}.safetensors", save(_own(server)))
            manifest = {
                "round": state.round,
                "seconds": state.seconds,
                "history": state.history,
                "clients": homes,
                "active": state.active,
                "dropped": state.dropped,
                "files": files,
                "state_sha256": state.sha256(),
            }
            body = json.dumps(manifest)
            document = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}
            self._write(f"checkpoint-{state.round}.json", json.dumps(document).encode())
        except OSError:
            self._prune(state.round)  # what no manifest names only fills the disk
            raise
        self._before = manifest
        self._prune(state.round)

    def load(self) -> State | None:
        """The newest state that is whole, or None. What is damaged is logged and passed over."""
        for round in reversed(self.rounds()):
            try:
                return self._load(round)
            except DAMAGE as error:
                log.warning(
                    "checkpoint %s is damaged (%s); falling back to the one before",
                    self.directory / f"checkpoint-{round}.json",
                    error,
                )
        return None

    def _load(self, round: int) -> State:
        manifest = self._manifest(round)
        files = {name: load(self._read(name, digest)) for name, digest in manifest["files"].items()}
        server = files[f"server-{round}.safetensors"]
        clients: dict[int, Vectors] = defaultdict(Vectors)
        homes = manifest["clients"]
        for name, tensors in files.items():
            for key, v in tensors.items() if name.startswith("clients-") else ():
                client, _, vector = key.partition("/")
                if f"clients-{homes.get(int(client))}.safetensors" == name:
                    clients[int(client)][vector] = v
        state = State(
            round,
            server.pop("theta"),
            server.pop("buffers"),
            Vectors({name.removeprefix("server/"): v for name, v in server.items()}),
            dict(clients),
            manifest["active"],
            manifest["history"],
            manifest["seconds"],
            manifest["dropped"],
        )
        if state.sha256() != manifest["state_sha256"]:
            raise ValueError("the state does not have the hash it was saved with")
        self._before = manifest
        return state

    def _manifest(self, round: int) -> dict[str, Any]:
        document = json.loads((self.directory / f"checkpoint-{round}.json").read_bytes())
        if hashlib.sha256(document["manifest"].encode()).hexdigest() != document["sha256"]:
            raise ValueError("the manifest does not have the checksum it was written with")
        manifest: dict[str, Any] = json.loads(document["manifest"])
        for name in ("clients", "active"):  # JSON's keys are strings
            manifest[name] = {int(i): value for i, value in manifest[name].items()}
        return manifest

    def _read(self, name: str, digest: str) -> bytes:
        if not re.fullmatch(r"(clients|server)-\d+\.safetensors", name):
            raise ValueError(f"{name!r} is not the name of a checkpoint's file")
        content = (self.directory / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{name} does not have the checksum it was written with")
        return content

    def _write(self, name: str, content: bytes) -> dict[str, str]:
        """Write and rename; a reader sees the whole file or none. Returns {name: SHA-256}."""
        temporary = self.directory / f"{name}.{os.getpid()}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self.directory / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return {name: hashlib.sha256(content).hexdigest()}

    def _prune(self, newest: int) -> None:
        # What claims to be newer than the checkpoint just written was damaged, or of a run that was given up.
        kept = [round for round in self.rounds() if round <= newest][-KEPT:]
        needed = {f"checkpoint-{round}.json" for round in kept}
        for round in kept:
            with contextlib.suppress(*DAMAGE):  # a damaged manifest needs nothing
                needed |= set(self._manifest(round)["files"])
        for path in self.directory.iterdir():
            ours = re.fullmatch(r"(checkpoint|clients|server)-\d+\.(json|safetensors)", path.name)
            if ours and path.name not in needed:
                path.unlink()


def _own(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors that share no memory, as safetensors wants them."""
    seen: set[int] = set()
    owned = {}
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        pointer = tensor.untyped_storage().data_ptr()
        shared = pointer in seen or tensor.untyped_storage().nbytes() != tensor.nbytes
        owned[name] = tensor.clone() if shared else tensor
        seen.add(pointer)
    return owned
