"""Splits of the samples: files that a run names."""

import json

import numpy as np

from tests.bad_input.case import Case, npz, put, run


def listed(line: str, train: object, *changes: str, clients: int = 2, **parts: object) -> Case:
    """`fedray run` with a split of this many clients in a JSON file."""
    content = json.dumps({"train": train, **parts})
    sets = ("partition={name: file, path: split.json}", f"clients={{total: {clients}, per_round: 1}}", *changes)
    return run(line, *sets, prepare=put("split.json", content))


CASES: dict[str, Case] = {
    "split absent": run("partition.path: split.npz does not exist", "partition={name: file, path: split.npz}"),
    "split of other arrays": run(
        "partition.path: data.npz holds 'x_test'; allowed are digest, samples, test_indices, test_offsets, "
        "train_indices, train_offsets, validation_indices, validation_offsets",
        "partition={name: file, path: data.npz}",
        prepare=npz(),
    ),
    "split of text": listed("partition.path: split.json: found 'a' in train; integers are required", [["a"], [1]]),
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
