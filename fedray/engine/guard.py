"""The in-place trap: a method that writes into what it was given is refused, instead of giving other numbers elsewhere.

What a client receives is shared: by the clients that the same process trains after it, and by the server. A method
that writes `c.theta -= ...` would thus give numbers that depend on the number of actors. PyTorch counts the changes of
every tensor, and views share the count with what they view. Two ways around it are not seen: `tensor.data`, which has a
count of its own, and the NumPy array of a tensor.
"""

import contextlib
from collections.abc import Iterator, Mapping

from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.common.errors import UserError


@contextlib.contextmanager
def forbid_changes(algorithm: Algorithm, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Within, the algorithm's code runs; afterwards every tensor must be what it was.

    Args:
        algorithm: whose class the message names.
        tensors: what must not change, by the name that the method has for it.

    Raises:
        UserError: a tensor was changed in place.
    """
    before = {name: tensor._version for name, tensor in tensors.items()}
    yield
    for name, tensor in tensors.items():
        refuse_changed(algorithm, name, tensor, before[name])


def refuse_changed(algorithm: Algorithm, name: str, tensor: Tensor, version: int) -> None:
    """Raise UserError where the tensor is no longer of this version."""
    if tensor._version != version:
        raise UserError(
            f"algorithm: class {type(algorithm).__name__} ({algorithm.name}) changes {name} in place, which others "
            f"share; assign a new tensor instead ({name} = {name} - v, not {name} -= v)"
        )
