"""Folders that PFLlib's and FL-bench's scripts generate, as a data set with natural clients or as a split.

PFLlib: `train/0.npz`, `test/0.npz`, ..., each a pickled dictionary of `x` and `y`. FL-bench: `partition.pkl` with the
positions of each client's `train`, `val` and `test` samples, training samples counted before test samples; `data.npy`
and `targets.npy` are its samples if it generated them. Nothing but arrays, lists and dictionaries is unpickled.
"""

import io
import zipfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from fedray.common.errors import UserError, join_lines
from fedray.common.whole_files import read_file
from fedray.datasets.arrays import check_arrays
from fedray.datasets.base import list_entries
from fedray.datasets.torchvision_sets import OnlyArrays
from fedray.partitions.shards import Shards


def read_folder(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz: a data set for `data: {name: npz}`, or a split for `partition: {name: file}`.

    Raises:
        UserError: the folder holds neither library's files, or something else in them.
    """
    if (folder / "partition.pkl").is_file():
        return _read_fl_bench(folder)
    if (folder / "train").is_dir():
        return _read_pfllib(folder)
    raise UserError(
        f"FOLDER: {folder} has neither train/0.npz, test/0.npz, ... (PFLlib's dataset/NAME) nor partition.pkl "
        "(FL-bench's data/NAME)"
    )


def _read_pfllib(folder: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        paths = {path.stem: path for path in list_entries(folder / part, "*.npz")}
        clients = [str(i) for i in range(len(paths))]
        if not paths or set(clients) != set(paths):
            raise UserError(f"FOLDER: {folder / part} does not hold 0.npz, 1.npz, ... without a gap")
        contents = [_read_client(paths[client]) for client in clients]
        for key in ("x", "y"):
            values = [_as_array(paths[client], content, key) for client, content in zip(clients, contents, strict=True)]
            if len(types := {str(value.dtype) for value in values}) > 1:
                raise UserError(
                    f"FOLDER: {folder / part}: {key} is {' and '.join(sorted(types))}; one type is required"
                )
            if empty := [client for client, value in zip(clients, values, strict=True) if not len(value)]:
                raise UserError(f"FOLDER: {paths[empty[0]]} holds no sample")
            try:
                arrays[f"{key}_{part}"] = np.concatenate(values)
            except (ValueError, TypeError) as error:
                raise UserError(f"FOLDER: {folder / part}: {key} of clients do not fit: {join_lines(error)}") from None
            arrays[f"client_{part}"] = np.repeat(np.arange(len(values)), [len(value) for value in values])
    check_arrays("npz", f"FOLDER: {folder}", arrays)
    return arrays


def _read_client(path: Path) -> Any:
    """Return what `np.savez(file, data={...})` wrote."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_file(path))) as archive, archive.open("data.npy") as file:
            is_first = np.lib.format.read_magic(file) == (1, 0)
            (np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0)(file)
            return OnlyArrays(file, encoding="latin1").load().item()
    except Exception as error:  # zipfile, zlib, pickle and NumPy raise their own types for damaged files
        raise UserError(f"FOLDER: {path} is not a client of PFLlib's: {join_lines(error)}") from None


def _as_array(path: Path, content: Any, key: str) -> np.ndarray:
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "uif" or not value.ndim:
        raise UserError(f"FOLDER: {path} has no array of numbers {key}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = value.astype(np.int64 if key == "y" else np.uint8 if value.dtype == np.uint8 else np.float32)
    if key == "y" and not np.array_equal(cast, value):
        raise UserError(f"FOLDER: {path} has labels y that are not integers")
    return cast


def _read_fl_bench(folder: Path) -> dict[str, np.ndarray]:
    path = folder / "partition.pkl"
    try:
        listed = OnlyArrays(io.BytesIO(read_file(path)), encoding="latin1").load()["data_indices"]
        clients = [listed[i] for i in range(len(listed))]  # a list, or a dictionary by client
        parts = {
            name: Shards.from_lists([_as_positions(client[part]) for client in clients])
            for name, part in (("train", "train"), ("test", "test"), ("validation", "val"))
            if name == "train" or any(len(client[part]) for client in clients)
        }
        if not clients:
            raise ValueError("it lists no client")
        if not parts["train"].sizes.all():
            raise ValueError(f"client {int(np.argmin(parts['train'].sizes))} has no training sample")
    except Exception as error:  # pickle raises anything
        raise UserError(f"FOLDER: {path} is not a partition of FL-bench's: {join_lines(error)}") from None
    for one, other in combinations(parts, 2):
        if len(shared := np.intersect1d(parts[one].indices, parts[other].indices)):
            raise UserError(f"FOLDER: {path} lists the sample {shared[0]} for {one} and for {other}")
    if not (folder / "data.npy").is_file():
        return {
            f"{part}_{what}": getattr(shards, what) for part, shards in parts.items() for what in ("indices", "offsets")
        }
    if "validation" in parts or len(parts) < 2:
        raise UserError(f"FOLDER: {path} lists {', '.join(parts)} samples; with data.npy, train and test are required")
    x, y = (_read_array(folder / f"{name}.npy", key) for name, key in (("data", "x"), ("targets", "y")))
    arrays: dict[str, np.ndarray] = {}
    for part, shards in parts.items():
        if len(x) != len(y) or shards.indices.min() < 0 or shards.indices.max() >= len(x):
            raise UserError(f"FOLDER: {path} does not fit the {len(x)} samples and {len(y)} labels of data.npy")
        arrays |= {f"x_{part}": x[shards.indices], f"y_{part}": y[shards.indices]}
        arrays[f"client_{part}"] = np.repeat(np.arange(len(shards)), shards.sizes)
    check_arrays("npz", f"FOLDER: {folder}", arrays)
    return arrays


def _as_positions(listed: Any) -> np.ndarray:
    found = np.asarray(listed).reshape(-1)
    if len(found) and (found.dtype.kind not in "iu" or found.min() < 0):
        raise ValueError("positions are integers from 0")
    return found.astype(np.int64)


def _read_array(path: Path, key: str) -> np.ndarray:
    try:
        return _as_array(path, {key: np.load(io.BytesIO(read_file(path)), allow_pickle=False)}, key)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"FOLDER: {path} is not a readable array: {join_lines(error)}") from None
