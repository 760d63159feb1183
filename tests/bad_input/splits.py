"""Splits of the samples: files that a run names, and folders of other libraries."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.bad_input.case import Case, Opens, npz, put, run


def listed(line: str, train: object, *changes: str, clients: int = 2, **parts: object) -> Case:
    """`fedray run` with a split of this many clients in a JSON file."""
    content = json.dumps({"train": train, **parts})
    sets = ("partition={name: file, path: split.json}", f"clients={{total: {clients}, per_round: 1}}", *changes)
    return run(line, *sets, prepare=put("split.json", content))


def generated(line: str, name: str, content: bytes) -> Case:
    """`fedray data import-split` of a folder with this file."""
    return Case(["data", "import-split", "folder", "out.npz"], line, put(f"folder/{name}", content))


def fl_bench(line: str, clients: list[object]) -> Case:
    """The same of a folder of FL-bench's."""
    start = "FOLDER: folder/partition.pkl is not a partition of FL-bench's: "
    return generated(start + line, "partition.pkl", pickle.dumps({"data_indices": clients}))


def pfllib(line: str, x: Sequence[object], y: Sequence[object]) -> Case:
    """The same of a folder of PFLlib's, whose clients have these samples for training and for testing."""

    def write(here: Path) -> None:
        for part in ("train", "test"):
            (here / "folder" / part).mkdir(parents=True)
            for client, (samples, labels) in enumerate(zip(x, y, strict=True)):
                content = {"x": np.asarray(samples), "y": np.asarray(labels)}
                np.savez(here / "folder" / part / f"{client}.npz", data=np.array(content))

    return Case(["data", "import-split", "folder", "out.npz"], line, write)


CASES: dict[str, Case] = {
    "split absent": run("partition.path: split.npz does not exist", "partition={name: file, path: split.npz}"),
    "split is a text": run(
        "partition.path: split.npz is not a readable .npz file: ValueError: it is not an archive of arrays",
        "partition={name: file, path: split.npz}",
        prepare=put("split.npz", "hello"),
    ),
    "split of other arrays": run(
        "partition.path: data.npz holds 'x_test'; allowed are digest, samples, test_indices, test_offsets, "
        "train_indices, train_offsets, validation_indices, validation_offsets",
        "partition={name: file, path: data.npz}",
        prepare=npz(),
    ),
    "split is no JSON": run(
        "partition.path: split.json is not a readable JSON: JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "partition={name: file, path: split.json}",
        prepare=put("split.json", "hello"),
    ),
    "split of text": listed("partition.path: split.json: found 'a' in train; integers are required", [["a"], [1]]),
    "split of numbers": listed(
        "partition.path: split.json: a list of lists for each of train, test, validation is required", [1, 2]
    ),
    "split of other parts": listed(
        "partition.path: split.json: a list of lists for each of train, test, validation is required", [[1]], val=[[2]]
    ),
    "split for fewer clients": listed(
        "clients.total: found 3; split.json lists 2 clients for train", [[0], [1]], clients=3
    ),
    "split out of range": listed(
        "partition.path: split.json lists the sample 1437 for train; allowed are 0 to 1436", [[0], [1437]]
    ),
    "split with overlap": listed(
        "partition.path: split.json lists the sample 1 twice for train; partition.overlap: true accepts it",
        [[0, 1], [1]],
    ),
    "split trains on its tests": listed(
        "partition.path: split.json lists the sample 1 for train and for test",
        [[0], [1]],
        "data={name: digits, test: {}}",
        test=[[1], [2]],
    ),
    "split with an empty client": listed(
        "partition.min_size: split.json leaves a client with 0 samples, 1 are required", [[0], []]
    ),
    "split without tests": listed(
        "data.test: the file of partition.path lists no test samples", [[0], [1]], "data={name: digits, test: {}}"
    ),
    "split and a fraction": listed(
        "data.test: has options, but the test samples are those of partition.path",
        [[0], [1]],
        "data={name: digits, test: {fraction: 0.5}}",
        test=[[2], [3]],
    ),
    "split and validation": listed(
        "data.validation: the split is that of partition.path, which may list validation samples itself",
        [[0], [1]],
        "data={name: digits, validation: {}}",
    ),
    "import from elsewhere": Case(
        ["data", "import", "zenodo:mnist", "out.npz"], "SOURCE: found 'zenodo:mnist'; hf:NAME is required"
    ),
    "import of an empty folder": Case(
        ["data", "import", "hf:./own", "out.npz"],
        "hf:./own: --train train cannot be read: …",
        lambda here: (here / "own").mkdir(),
        {"HF_HUB_OFFLINE": "1"},
    ),
    "folder of nobody": generated(
        "FOLDER: folder has neither train/0.npz, test/0.npz, ... (PFLlib's dataset/NAME) nor partition.pkl "
        "(FL-bench's data/NAME)",
        "a",
        b"",
    ),
    "folder without tests": generated(
        "FOLDER: folder/train/0.npz is not a client of PFLlib's: BadZipFile: File is not a zip file", "train/0.npz", b""
    ),
    "folder with a gap": generated(
        "FOLDER: folder/train does not hold 0.npz, 1.npz, ... without a gap", "train/1.npz", b""
    ),
    "folder that opens a file": generated(
        "FOLDER: folder/partition.pkl is not a partition of FL-bench's: UnpicklingError: io.open is not allowed in a "
        "file of arrays",
        "partition.pkl",
        pickle.dumps({"data_indices": Opens()}),
    ),
    "folder of no clients": fl_bench("ValueError: it lists no client", []),
    "folder without training samples": fl_bench(
        "ValueError: client 1 has no training sample",
        [{"train": [0], "val": [], "test": [1]}, {"train": [], "val": [], "test": [2]}],
    ),
    "folder with a sample for training and testing": generated(
        "FOLDER: folder/partition.pkl lists the sample 1 for train and for test",
        "partition.pkl",
        pickle.dumps(
            {"data_indices": [{"train": [0, 1], "val": [], "test": [2]}, {"train": [3], "val": [], "test": [1]}]}
        ),
    ),
    "folder with a sample for training and validation": generated(
        "FOLDER: folder/partition.pkl lists the sample 1 for train and for validation",
        "partition.pkl",
        pickle.dumps({"data_indices": [{"train": [0, 1], "val": [1], "test": []}]}),
    ),
    "folder with half a position": fl_bench(
        "ValueError: positions are integers from 0", [{"train": [0.5], "val": [], "test": []}]
    ),
    "folder with a position below 0": fl_bench(
        "ValueError: positions are integers from 0", [{"train": [-1], "val": [], "test": []}]
    ),
    "folder with half a label": pfllib(
        "FOLDER: folder/train/0.npz has labels y that are not integers", [[1, 2]], [[0.5, 1]]
    ),
    "folder with no label": pfllib(
        "FOLDER: folder/train/0.npz has labels y that are not integers", [[1, 2]], [[np.nan, 1]]
    ),
    "folder of two types": pfllib(
        "FOLDER: folder/train: x is float32 and uint8; one type is required",
        [np.zeros((2, 1), np.uint8), np.zeros((2, 1))],
        [[0, 1]] * 2,
    ),
    "folder with an empty client": pfllib(
        "FOLDER: folder/train/1.npz holds no sample", [np.zeros((2, 1)), np.zeros((0, 1))], [[0, 1], []]
    ),
    "folder of numbers beyond float32": pfllib(
        "FOLDER: folder: x_train holds NaN or infinity", [np.full((2, 1), 1e300)], [[0, 1]]
    ),
    "split onto a folder": Case(
        ["data", "import-split", "folder", "out.npz"],
        "OUT: out.npz cannot be written: Is a directory",
        lambda here: (here / "out.npz").mkdir(),
    ),
    "split with a name twice": run(
        "partition.path: split.json is not a readable JSON: ValueError: a name is listed twice",
        "partition={name: file, path: split.json}",
        prepare=put("split.json", '{"train": [[0]], "train": [[1]]}'),
    ),
    "split with offsets that fall": run(
        "partition.path: split.npz has train_offsets that do not rise from 0 to 4",
        "partition={name: file, path: split.npz}",
        prepare=lambda here: np.savez(
            here / "split.npz", train_indices=np.arange(4), train_offsets=np.array([0, 3, 1, 4], np.uint64)
        ),
    ),
}
