"""Weights that a run never changes: one copy of them per node, in a memory-mapped file."""

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedray.common.errors import UserError
from fedray.common.vectors import view_bytes
from fedray.common.whole_files import write_whole

SHARED_FROM = 1 << 20
"""Frozen weights of fewer bytes than this stay in each process's own memory."""
UNUSED = 24 * 3600.0
"""Age in seconds from which a file that no process has opened since is removed."""


def share_frozen(tensors: Mapping[str, Tensor], sha256: str) -> None:
    """Let all processes of this node and user hold the same copy of frozen weights.

    The tensors become views of a file `fedray-frozen-UID/SHA256` in the node's temporary folder. Pages that a process
    writes to become its own. A file that was not used for a day is removed; who has it mapped keeps it. Raises
    UserError if the folder cannot be used.
    """
    shared = [tensor for _, tensor in sorted(tensors.items()) if tensor.dtype == torch.float32]
    if sum(tensor.nbytes for tensor in shared) < SHARED_FROM:
        return
    folder = Path(tempfile.gettempdir()) / f"fedray-frozen-{os.getuid()}"
    try:
        _open_folder(folder)
        mapped = _map(folder / sha256, shared)
    except OSError as error:
        raise UserError(
            f"model: the frozen weights cannot be shared in {folder}: {error.strerror}; set TMPDIR to another folder"
        ) from None
    for tensor, part in zip(shared, mapped, strict=True):
        tensor.data = part


def _open_folder(folder: Path) -> None:
    """Create the folder if needed, and remove what was not used for a day. Raises OSError if it is another user's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(1, "it belongs to another user")
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process was first
            if time.time() - path.stat().st_mtime > UNUSED:
                path.unlink()


def _map(path: Path, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of the file in the shapes of the tensors; it is written unless it holds what they hold."""
    for _ in range(2):
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
            if path.stat().st_size == sum(tensor.nbytes for tensor in tensors):
                flat = torch.from_numpy(np.memmap(path, np.float32, mode="c"))
                parts = flat.split([tensor.numel() for tensor in tensors])
                pairs = list(zip(parts, tensors, strict=True))
                if all(np.array_equal(view_bytes(part), view_bytes(tensor)) for part, tensor in pairs):
                    return [part.view(tensor.shape) for part, tensor in pairs]
        with write_whole(path) as file:
            for tensor in tensors:
                file.write(view_bytes(tensor).data)
    raise OSError(5, f"{path.name} does not hold what was written")
