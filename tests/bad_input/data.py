"""Data sets, splits of their samples and other files that a run names."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedray.common.whole_files import MEMORY
from tests.bad_input.case import NPZ, Case, Opens, npz, put, run


def bare(here: Path) -> None:
    """`data.npz` with a member that is no array."""
    with zipfile.ZipFile(here / "data.npz", "w") as archive:
        archive.writestr("x_train.npy", b"no header")


def too_large(here: Path) -> None:
    """`data.npz` with a byte more than this machine can hold; it takes no room on the disk."""
    with (here / "data.npz").open("wb") as file:
        file.truncate(MEMORY + 1)


def listed(line: str, train: object, *changes: str, clients: int = 2, **parts: object) -> Case:
    """`fedray run` with a split of this many clients in a JSON file."""
    content = json.dumps({"train": train, **parts})
    sets = ("partition={name: file, path: split.json}", f"clients={{total: {clients}, per_round: 1}}", *changes)
    return run(line, *sets, prepare=put("split.json", content))


UNREADABLE = "data.path: data.npz is not a readable .npz file: ValueError: "
EMPTY = {"x_train": np.zeros((20, 0), np.float32)}
ARRAYS: dict[str, dict[str, Any]] = {
    "data.path: data.npz: x_train has shape (20, 0); at least one sample and one feature are required": EMPTY,
    f"{UNREADABLE}Object arrays cannot be loaded when allow_pickle=False": {"y_train": np.array([Opens()] * 20)},
    "data.path: data.npz lacks y_test; found: x_test, x_train, y_train": {"y_test": None},
    "data.path: data.npz: y_train holds -1..18; labels in 0..99999 are required": {"y_train": np.arange(20) - 1},
    "data.path: data.npz: x_train holds NaN or infinity": {
        "x_train": np.full((20, 25), np.nan, np.float32),
        "x_test": np.zeros((6, 25), np.float32),
    },
    "data npz: x_train samples have shape (1, 5, 5), x_test samples (1, 5, 4)": {"x_test": np.zeros((6, 5, 4), "u1")},
}
"""What is said of data.npz -> its arrays that are wrong."""

CHANGES: dict[str, str] = {
    "data={name: npz, path: data.npz}": "data.path: data.npz does not exist in {here}",
    "data={name: npz, path: /none/data.npz}": "data.path: /none/data.npz does not exist",
    "data={name: folder, path: none, size: 8}": "data.path: none is not a folder in {here}",
    "partition={name: file, path: none.json}": "partition.path: none.json does not exist in {here}",
    "data={name: npz, path: x.npz, preset: fedsol}": "run.yaml with --set: data.preset of npz: unknown name 'fedsol'; "
    "valid: plain; 'fedsol' belongs to mnist, cifar10, …",
    "model.init=none.pt": "model.init: none.pt does not exist in {here}",
    "data.augment=[flip, crop]": "run.yaml with --set: data.augment: found crop; it needs a number: {crop: 4}",
    "data.mean=[0.1, 0.2]": "data.mean: found 2 means and 1 stds; the images have 1 channels",
}
"""What --set changes -> what is said about it."""

OF_NPZ: dict[str, Callable[[Path], object]] = {
    f"data.path: data.npz has {MEMORY + 1} bytes, and this machine {MEMORY} bytes of memory": too_large,
    f"{UNREADABLE}it is not an archive of arrays": put("data.npz", "hello"),
    "data.path: data.npz is not a regular file": lambda here: os.mkfifo(here / "data.npz"),
    f"{UNREADABLE}x_train has no header of an array": bare,
}
"""What is said of data.npz -> what makes it."""

SPLIT, DIGITS = "partition.path: split.json", "data={{name: digits, {}}}".format
FALLING = np.array([0, 3, 1, 4], np.uint64)
SPLITS: dict[str, Case] = {
    case.line[:70]: case
    for case in (
        listed(f"{SPLIT}: found 'a' in train; integers are required", [["a"], [1]]),
        listed(f"{SPLIT}: a list of lists for each of train, test, validation is required", [[1]], val=[[2]]),
        listed("clients.total: found 3; split.json lists 2 clients for train", [[0], [1]], clients=3),
        listed(f"{SPLIT} lists the sample 1437 for train; allowed are 0 to 1436", [[0], [1437]]),
        listed(f"{SPLIT} lists the sample 1 twice for train; partition.overlap: true accepts it", [[0, 1], [1]]),
        listed(f"{SPLIT} lists the sample 1 for train and for test", [[0], [1]], DIGITS("test: {}"), test=[[1], [2]]),
        listed("partition.min_size: split.json leaves a client with 0 samples, 1 are required", [[0], []]),
        listed("data.test: the file of partition.path lists no test samples", [[0], [1]], DIGITS("test: {}")),
        listed(
            "data.test: has options, but the test samples are those of partition.path",
            [[0], [1]],
            DIGITS("test: {fraction: 0.5}"),
            test=[[2], [3]],
        ),
        listed(
            "data.validation: the split is that of partition.path, which may list validation samples itself",
            [[0], [1]],
            DIGITS("validation: {}"),
        ),
    )
}

INITS = {
    "ValueError: 0.weight holds complex numbers": {"0.weight": torch.zeros(2, dtype=torch.complex64)},
    'RuntimeError: Error(s) in loading state_dict for Sequential: Missing key(s) in state_dict: "1.weight", "1.bias", '
    '"3.weight", "3.bias". Unexpected key(s) in state_dict: "module.w".': {"module.w": torch.zeros(2)},
}

CASES: dict[str, Case] = {
    **{f"arrays: {line[:60]}": run(line, NPZ, prepare=npz(**wrong)) for line, wrong in ARRAYS.items()},
    **{change: run(line, change) for change, line in CHANGES.items()},
    **{line: run(line, NPZ, prepare=make) for line, make in OF_NPZ.items()},
    **SPLITS,
    "init a pickle": run(
        "model.init: a.pt does not fit mlp: it is not a file of tensors that torch.save wrote; the name of a "
        "safetensors file ends in .safetensors",
        "model.init=a.pt",
        prepare=put("a.pt", pickle.dumps(Opens(), 2)),
    ),
    **{
        line: run(
            f"model.init: m.pt does not fit mlp: {line}",
            "model.init=m.pt",
            prepare=lambda here, state=state: torch.save(state, here / "m.pt"),
        )
        for line, state in INITS.items()
    },
    "split of other arrays": run(
        "partition.path: data.npz holds 'x_test'; allowed are digest, samples, test_indices, test_offsets, "
        "train_indices, train_offsets, validation_indices, validation_offsets",
        "partition={name: file, path: data.npz}",
        prepare=npz(),
    ),
    "split with a name twice": run(
        f"{SPLIT} is not a readable JSON: ValueError: a name is listed twice",
        "partition={name: file, path: split.json}",
        prepare=put("split.json", '{"train": [[0]], "train": [[1]]}'),
    ),
    "split with offsets that fall": run(
        "partition.path: split.npz has train_offsets that do not rise from 0 to 4",
        "partition={name: file, path: split.npz}",
        prepare=lambda here: np.savez(here / "split.npz", train_indices=np.arange(4), train_offsets=FALLING),
    ),
}
