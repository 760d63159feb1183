"""Data sets with labels only, which is all that a partition sees."""

import numpy as np

from fedray.datasets.dataset import Dataset


def data(labels: np.ndarray, classes: int, test: np.ndarray | None = None, **clients: np.ndarray) -> Dataset:
    """Samples without content: y_train, y_test (as y_train unless given), and `client_train`, `client_test`."""
    test = labels if test is None else test
    return Dataset(
        "d",
        np.zeros((len(labels), 1), np.float32),
        labels.astype(np.int64),
        np.zeros((len(test), 1), np.float32),
        test.astype(np.int64),
        classes,
        **clients,
    )  # type: ignore[arg-type]
