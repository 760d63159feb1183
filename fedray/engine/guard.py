"""Guard against slips: a method that writes into its inputs is refused, because its numbers would vary.

What a client receives is shared with the clients that the same process trains next, and with the server. The numbers
of a method that writes `c.theta -= ...` would thus depend on the number of actors. PyTorch counts the changes of every
tensor, and a view shares the counter of its base. Two ways around it go undetected: `tensor.data`, which has its own
counter, and a tensor's NumPy array.
"""

from collections.abc import Mapping

from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.common.errors import UserError, find_nearest
from fedray.common.vectors import Vectors


class Guard:
    """A block that runs an algorithm's code. Raises UserError if a tensor, by the method's name of it, changes.

    Also if the state, of that name, gets an entry whose name is like one that it has: a slip that would otherwise leave
    the right one as it was, without a word.
    """

    def __init__(self, algorithm: Algorithm, tensors: Mapping[str, Tensor], name: str, state: Vectors) -> None:
        self._algorithm, self._name, self._state, self._known = algorithm, name, state, [*state]
        given = {f"{name}.{entry}": vector for entry, vector in state.items()}
        self._before = [(name, tensor, tensor._version) for name, tensor in [*tensors.items(), *given.items()]]

    def __enter__(self) -> None:
        pass

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            for name, tensor, version in self._before:
                refuse_changed(self._algorithm, name, tensor, version)
            for entry in self._state.keys() - {*self._known}:
                if near := find_nearest(entry, self._known):
                    raise UserError(
                        f"algorithm: class {type(self._algorithm).__name__} ({self._algorithm.name}) sets "
                        f"{self._name}.{entry}, which does not exist; did you mean {self._name}.{near}? Otherwise let "
                        f"{'server' if self._name == 'server.state' else 'client'}_state return both"
                    )


def refuse_changed(algorithm: Algorithm, name: str, tensor: Tensor, version: int) -> None:
    """Raise UserError if the tensor no longer has this version."""
    if tensor._version != version:
        raise UserError(
            f"algorithm: class {type(algorithm).__name__} ({algorithm.name}) changes {name} in place, which others "
            f"share; assign a new tensor instead ({name} = {name} - v, not {name} -= v)"
        )
