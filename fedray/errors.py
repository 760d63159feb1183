"""What can go wrong, in the two kinds a caller tells apart: the user's mistake and a run whose numbers went wrong."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something the user can mend: one line naming the key or file, what was found and what is allowed. Exit code 2."""


class Diverged(Exception):
    """A loss, gradient, upload or aggregate is not finite, or too large to be summed exactly.

    Attributes: `round` (1-based, the round in which it appeared), `client` (id, or None for the server), `what`.
    """

    def __init__(self, round: int, client: int | None, what: str) -> None:
        super().__init__(round, client, what)  # the arguments, so that the exception survives pickling
        self.round, self.client, self.what = round, client, what

    def __str__(self) -> str:
        where = "the server" if self.client is None else f"client {self.client}"
        return f"diverged in round {self.round}, {where}: {self.what}"


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """The error for a name that does not exist: the nearest valid one first, then all of them."""
    names = sorted(valid)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"{kind}: unknown name {name!r}; {hint}valid: {', '.join(names)}")
