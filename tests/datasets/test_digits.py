"""scikit-learn's digits, read from its file and through its function: the same arrays."""

import subprocess
import sys
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedray.datasets import arrays
from fedray.datasets.arrays import Digits


@pytest.mark.parametrize("elsewhere", [False, True])
def test_they_are_scikit_learns(elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels 0..16 times 255/16 are bytes; the split is that of RandomState(0), the first 1,437 for training."""
    if elsewhere:
        monkeypatch.setattr(arrays, "find_spec", lambda name: ModuleSpec(name, None, origin="/nowhere/__init__.py"))
    data, theirs = Digits().read(), load_digits()
    order = np.random.RandomState(0).permutation(1797)
    found = np.concatenate([data.x_train, data.x_test])
    assert found.dtype == np.uint8
    assert np.array_equal(found[:, 0], np.round(theirs.images * 255 / 16)[order])
    assert np.array_equal(np.concatenate([data.y_train, data.y_test]), theirs.target[order])
    assert len(data.y_train) == 1437


def test_reading_them_imports_no_scikit_learn() -> None:
    code = "import sys; from fedray.datasets.arrays import Digits; Digits().read(); print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
