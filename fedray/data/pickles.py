"""The pickled batches of the CIFAR family, read without running anything that they name."""

import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy._core import multiarray


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2; pickle would take any codec there is."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the codec {encoding!r} is not allowed")
    return text.encode("latin1")


class _OnlyArrays(pickle.Unpickler):
    """Numbers, text, lists, dictionaries and NumPy's arrays of numbers; every other class or function is refused."""

    allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype, ("_codecs", "encode"): _latin1,
        ("numpy.core.multiarray", "_reconstruct"): multiarray._reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): multiarray._reconstruct}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a file of arrays")
        return self.allowed[module, name]


def batch(path: Path) -> tuple[np.ndarray, list[int]]:
    """Images uint8 `(n, 3, 32, 32)` and their (fine) labels. Raises whatever pickle and NumPy raise for other files."""
    with path.open("rb") as file:
        content = _OnlyArrays(file, encoding="latin1").load()
    return content["data"].reshape(-1, 3, 32, 32), list(content["labels" if "labels" in content else "fine_labels"])
