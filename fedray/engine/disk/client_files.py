"""Clients' states as files: one per client and version, hashed by the process that holds it, read when needed."""

import json
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedray.common.errors import UserError
from fedray.common.vectors import Vectors, digest_tensors
from fedray.common.whole_files import write_file
from fedray.engine.state import ClientState, StateDamaged, StateRef, load_state

T = TypeVar("T")
PAUSES = (0.1, 1.0, 3.0)
"""Seconds before each new attempt at an access that the file system refuses."""


class Version(NamedTuple):
    """A client's state to be written: the round that last changed it, and the state or a reference to it."""

    client: int
    active: int
    state: ClientState


class Written(NamedTuple):
    """A manifest's entry for a client's state: the round that last changed it, its hash, the size of its file."""

    active: int
    sha256: str
    nbytes: int


@dataclass(frozen=True)
class StoredState(StateRef):
    """A client's state in a file of a checkpoint, which is checked when it is read."""

    path: str
    sha256: str

    def load(self) -> Vectors:
        try:
            state = Vectors(unpack(read(Path(self.path))))
        except (FileNotFoundError, ValueError, KeyError, SafetensorError) as error:
            raise StateDamaged(self.path, str(error)) from None
        if digest_tensors(state) != self.sha256:
            raise StateDamaged(self.path, "it does not have the hash it was written with")
        return state


def retry(access: Callable[[], T], path: str | Path) -> T:
    """Return the result of `access` to a file or folder, repeating it a few times if it fails.

    A file server that is away, or too many open files, says nothing about a file's content. Raises FileNotFoundError,
    or UserError if the file system still refuses.
    """
    pauses = list(PAUSES)
    while True:
        try:
            return access()
        except FileNotFoundError:
            raise
        except OSError as error:
            if not pauses:
                raise UserError(
                    f"{path}: the file system says: {error.strerror or error}; the checkpoints stay as they are: "
                    "run the same command again to resume"
                ) from None
        time.sleep(pauses.pop(0))


def read(path: Path) -> bytes:
    """Return the content of a file, as `retry`. Raises ValueError for a pipe or a device, which may never end."""

    def access() -> bytes:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        return path.read_bytes()

    return retry(access, path)


def name_file(client: int, active: int) -> str:
    """Return the name of the file with the state that a client has had since the round `active` (1-based)."""
    return f"client-{client}-{active}.safetensors"


def write_states(directory: str, versions: Sequence[Version]) -> dict[int, Written]:
    """Write each state to a file of its own; a reader sees whole files or none.

    Raises OSError if a file cannot be written (disk full, say). Files already written stay, unnamed by any manifest.
    """
    written: dict[int, Written] = {}
    for client, active, state in versions:
        vectors = load_state(state)
        content = pack(vectors)
        digest = state.sha256 if isinstance(state, StateRef) else None
        write_file(Path(directory, name_file(client, active)), content)
        written[client] = Written(active, digest or digest_tensors(vectors), len(content))
    return written


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a safetensors file, which sorts tensors by type and name, with their order beside them."""
    seen: set[int] = set()  # it wants contiguous tensors that share no memory
    result = {}
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        pointer = tensor.untyped_storage().data_ptr()
        shared = pointer in seen or tensor.untyped_storage().nbytes() != tensor.nbytes
        result[name] = tensor.clone() if shared else tensor
        seen.add(pointer)
    return save(result, {"order": json.dumps([*tensors])})


def unpack(content: bytes) -> dict[str, Tensor]:
    """Return a file's tensors in the order they were given in; a method may take them by place."""
    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    order = json.loads(header.get("__metadata__", {}).get("order", "null"))
    return tensors if order is None else {name: tensors[name] for name in order}
