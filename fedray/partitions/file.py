"""Your own split: every client's samples, from a file."""

import json
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedray.common.errors import UserError, restate, truncate_repr
from fedray.common.whole_files import read_file
from fedray.common.yaml_files import locate_file
from fedray.components.identity import FILE
from fedray.datasets.arrays import read_npz
from fedray.datasets.dataset import Dataset
from fedray.partitions.base import Partition
from fedray.partitions.shards import Shards

PARTS = ("train", "test", "validation")


class FromFile(Partition):
    """Your own split from a file: a run's `partition.npz`, or a JSON `{"train": [[3, 5], [4]], "test": ...}`.

    npz: client i trains on `train_indices[train_offsets[i]:train_offsets[i + 1]]`; likewise `test_*` and
    `validation_*`.
    JSON: a list of positions per client. With `data.test` positions count training, then test samples; otherwise
    positions under `test` count test samples. A run's npz also has `samples`, the sizes (`[training, test]` or
    `[both]`), and `digest`, the SHA-256 of the labels; a file with them is refused with other data, or with the same
    data in another order. With `clients.unseen` the last clients of the file are the unseen ones.
    """

    name = "file"
    splits = True
    path: Annotated[str, FILE] = Field(description="the .npz or .json file")
    overlap: bool = Field(False, description="accept samples that several clients hold, or one client several times")

    def split(self, data: Dataset, clients: int, seed: int) -> Shards:
        parts, samples, digest = self._read()
        self._refuse_other_data(data, samples, digest)
        for part, shards in parts.items():
            self._check(part, shards, clients, len(data.y_test if part == "test" else data.y_train))
        apart = [part for part in parts if part != "test" or data.is_merged]
        for part, other in combinations(apart, 2):
            if len(both := np.intersect1d(parts[part].indices, parts[other].indices)):
                raise self._make_error(f"lists the sample {both[0]} for {part} and for {other}")
        return self.check_sizes(parts["train"], f"{self.path} leaves a client with")

    def get_held_out(self, part: Literal["test", "validation"]) -> Shards | None:
        return self._read()[0].get(part)

    def split_test(self, data: Dataset, shards: Shards, seed: int, how: Literal["share", "disjoint"]) -> Shards:
        return self.get_held_out("test") or super().split_test(data, shards, seed, how)

    def _make_error(self, what: str) -> UserError:
        return UserError(f"partition.path: {self.path} {what}")

    def _check(self, part: str, shards: Shards, clients: int, samples: int) -> None:
        if len(shards) != clients and not (part == "validation" and len(shards) == 1):
            raise UserError(f"clients.total: found {clients}; {self.path} lists {len(shards)} clients for {part}")
        strange = shards.indices[(shards.indices < 0) | (shards.indices >= samples)]
        if len(strange):
            raise self._make_error(f"lists the sample {strange[0]} for {part}; allowed are 0 to {samples - 1}")
        listed, counts = np.unique(shards.indices, return_counts=True)
        if not self.overlap and len(counts) and counts.max() > 1:
            twice = listed[counts > 1][0]
            raise self._make_error(f"lists the sample {twice} twice for {part}; partition.overlap: true accepts it")

    def _refuse_other_data(self, data: Dataset, samples: list[int] | None, digest: str | None) -> None:
        sizes = [len(data.y_train)] if data.is_merged else [len(data.y_train), len(data.y_test)]
        if samples is not None and samples != sizes:
            kinds = {1: "training and test samples as one set", 2: "training and test samples apart"}
            raise self._make_error(
                f"counts {' + '.join(map(str, samples))} samples ({kinds.get(len(samples), 'unknown')}); "
                f"{data.name} has {' + '.join(map(str, sizes))} {'with' if data.is_merged else 'without'} data.test"
            )
        if digest not in (None, data.labels_digest):
            raise self._make_error(
                f"was made for labels with the digest {str(digest)[:16]}; those of {data.name} have "
                f"{data.labels_digest[:16]}: other samples, or another order"
            )

    def _read(self) -> tuple[dict[str, Shards], list[int] | None, str | None]:
        """Return the parts of the file, and the sizes and the digest that it gives. Raises UserError."""
        path = locate_file("partition.path", self.path)
        arrays = _read_json(path) if path.suffix == ".json" else read_npz("partition.path", path)
        known = {f"{part}_{what}" for part in PARTS for what in ("indices", "offsets")} | {"samples", "digest"}
        if strange := sorted(set(arrays) - known):
            raise self._make_error(f"holds {truncate_repr(strange[0])}; allowed are {', '.join(sorted(known))}")
        for name, array in arrays.items():
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise self._make_error(f"holds {name} as {array.dtype} {array.shape}; integers (n,) are required")
        parts: dict[str, Shards] = {}
        for part in PARTS:
            indices, offsets = (arrays.get(f"{part}_{what}") for what in ("indices", "offsets"))
            if indices is None and offsets is None and part != "train":
                continue
            if indices is None or offsets is None:
                raise self._make_error(f"lacks {part}_{'indices' if indices is None else 'offsets'}")
            indices, offsets = indices.astype(np.int64), offsets.astype(np.int64)
            if len(offsets) < 2 or offsets[0] or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
                raise self._make_error(f"has {part}_offsets that do not rise from 0 to {len(indices)}")
            parts[part] = Shards(indices, offsets)
        digest = arrays.get("digest")
        if digest is not None and (digest.dtype != np.uint8 or len(digest) != 32):
            raise self._make_error(f"holds digest as {digest.dtype} {digest.shape}; uint8 (32,) is required")
        sizes = arrays["samples"].tolist() if "samples" in arrays else None
        return parts, sizes, None if digest is None else digest.tobytes().hex()


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a name is listed twice")
    return mapping


def _read_json(path: Path) -> dict[str, np.ndarray]:
    """Return the lists of a JSON as the arrays of a `partition.npz`. Raises UserError."""
    with restate(f"partition.path: {path} is not a readable JSON", OSError, ValueError, RecursionError):
        content: Any = json.loads(read_file(path), object_pairs_hook=_refuse_twice)
    content = {"train": content} if isinstance(content, list) else content
    arrays: dict[str, np.ndarray] = {}
    for part, lists in content.items() if isinstance(content, dict) else [("", None)]:
        if part not in PARTS or not isinstance(lists, list) or not all(isinstance(shard, list) for shard in lists):
            raise UserError(f"partition.path: {path}: a list of lists for each of {', '.join(PARTS)} is required")
        if strange := [index for shard in lists for index in shard if type(index) is not int or abs(index) >= 2**63]:
            raise UserError(
                f"partition.path: {path}: found {truncate_repr(strange[0])} in {part}; integers are required"
            )
        shards = Shards.from_lists([np.array(shard, dtype=np.int64) for shard in lists])
        arrays |= {f"{part}_indices": shards.indices, f"{part}_offsets": shards.offsets}
    return arrays
