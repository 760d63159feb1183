"""The two errors that a caller distinguishes: a user's mistake, and a run whose numbers went wrong."""

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from itertools import pairwise
from urllib.parse import unquote

SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables whose values are never printed or logged, nor are passwords in MLFLOW_TRACKING_URI."""
LONGEST = 80
"""Maximum number of characters of a value that a message repeats."""
WIDEST = 500
"""Maximum number of characters of a line that a command prints about a mistake."""
NEAREST, MANY = 5, 12
"""Number of names that a message repeats of a list with more than MANY."""
FORMS = "@forms"
"""End of the name of a method's other forms (`fedray.papers.variants`)."""
LISTS = {"algorithm": "algorithms", "model": "models", "data": "datasets", "partition": "partitions"}
"""Section of a configuration -> the argument of `fedray list` that lists its names."""


class UserError(Exception):
    """A mistake that the user can correct, in one line: key or file, what was found, what is allowed. Exit code 2.

    Examples:
        >>> fedray.simulate(config | {"algorithm": {"name": "fedsam", "rho": -1}})
        Traceback (most recent call last):
        fedray.common.errors.UserError: algorithm.rho: found -1; input should be greater than or equal to 0
    """


class PluginError(UserError):
    """A user's own class raised an exception. Attributes: `trace`, the text of its traceback."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message, trace)  # the arguments, so that the exception survives pickling
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


class Slip(UserError):
    """A slip of a method's code, as a clause without its subject: `engine.guard` names the class."""


class DataMissing(UserError):
    """The files of a data set are not here."""


@contextlib.contextmanager
def name_place(place: object) -> Iterator[None]:
    """Let the message of a UserError of the block begin with a place: a file, a key."""
    try:
        yield
    except DataMissing as error:
        raise DataMissing(f"{place}: {error}") from None
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


@contextlib.contextmanager
def restate(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Let exceptions of these kinds in the block be a UserError: what is wrong, then the exception in one line."""
    try:
        yield
    except kinds as error:
        raise UserError(f"{what}: {join_lines(error)}") from None


class Diverged(Exception):
    """A loss, gradient, upload or aggregate is not finite, or too large to be summed exactly.

    Attributes: `round` (1-based, the round in which it appeared), `client` (id, or None for the server), `what`.

    Examples:
        >>> fedray.simulate(config | {"training": {"rounds": 2, "lr": 1e30}})
        Traceback (most recent call last):
        fedray.common.errors.Diverged: diverged in round 1, client 1: the training loss is not finite
    """

    def __init__(self, round: int, client: int | None, what: str) -> None:
        super().__init__(round, client, what)  # the arguments, so that the exception survives pickling
        self.round, self.client, self.what = round, client, what

    def __str__(self) -> str:
        where = "the server" if self.client is None else f"client {self.client}"
        return f"diverged in round {self.round}, {where}: {self.what}"


def unknown(kind: str, name: str, valid: Iterable[str], listing: str = "", meant: str = "") -> UserError:
    """Return the error for an unknown name: the nearest valid one first, then all of them.

    A long list is left out after a nearest name, or if a command or page lists them (`listing`). `meant` is what was
    probably meant, if the caller knows more than the spelling.
    """
    names = sorted(set(valid))
    meant = meant or (repr(near) if (near := find_nearest(name[:LONGEST], names, 0.5)) else "")
    hint = f"did you mean {meant}? " if meant else ""
    told = f"valid: {', '.join(names)}" if not hint or len(names) <= MANY else ""
    told = f"{listing} lists them" if listing and len(names) > MANY else told
    return UserError(f"{kind}: unknown name {truncate_repr(name)}; {hint}{told}".rstrip())


def find_nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the name that is most like a word, or like it in lower case; empty for none.

    Of equally near ones it is that with the longest common beginning.
    """
    every = list(names)
    near = get_close_matches(word, every, NEAREST, cutoff) or get_close_matches(word.lower(), every, NEAREST, cutoff)

    def rank(name: str) -> tuple[float, list[bool]]:
        same = [one == other for one, other in zip(name, word.lower(), strict=False)]
        return SequenceMatcher(None, name, word.lower()).ratio(), same

    return max(near, key=rank, default="")


def refuse_missing_package(key: str, package: str, extra: str) -> None:
    """Raise UserError, with the key or option first, if a package is not installed that an extra of fedray adds."""
    from importlib import metadata  # here: every command imports this module

    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise UserError(f"{key}: {package} is not installed; pip install 'fedray[{extra}]' adds it") from None


def truncate_repr(value: object) -> str:
    """Return the `repr` of a user's value, short enough for one line."""
    try:
        text = " ".join(line.strip() for line in repr(value).split("\n"))
    except Exception:  # an integer of more digits than Python prints, a class of the user's own
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def format_count(n: int, noun: str) -> str:
    """Format `1 seed`, `2 seeds`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def format_number(value: float) -> str:
    """Format three digits without an exponent: `3,990`, `12`, `0.034`."""
    return f"{float(f'{value:.3g}'):,.10g}"


def format_duration(seconds: float) -> str:
    """Format `2.5 h`, below two hours `14 min`, below a minute `9.1 s`."""
    if seconds >= 7200:
        return f"{format_number(seconds / 3600)} h"
    if seconds >= 600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 60:.2g} min" if seconds >= 60 else f"{seconds:.2g} s"


def escape(text: str) -> str:
    """Return the text with control characters written out, such as `\\x1b`, which begins a terminal's escape codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def join_lines(error: BaseException) -> str:
    """Return type and message of another library's exception in one line."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))
    return " ".join(f"{type(error).__name__}: {text}".split()).removesuffix(":")[:300]


@cache
def warn_once(message: str) -> None:
    """Log a warning unless this process has logged the same one in the user's call."""
    logging.getLogger("fedray").warning(message)


def shorten(text: str) -> str:
    """Return a line of at most WIDEST characters: its beginning and its end, where a message says what is allowed."""
    return text if len(text) <= WIDEST else f"{text[: 2 * WIDEST // 3]} ... {text[-WIDEST // 3 + 5 :]}"


def redact(text: str) -> str:
    """Return the text without user names, passwords and query values in addresses, and without tracking secrets.

    It is called on every message and log record, so that its time is proportional to the text's length.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    user = uri.partition("://")[2].rpartition("@")[0]
    hidden = {os.environ.get(name, "") for name in SECRETS} | {user, user.partition(":")[2]}
    hidden |= {value for value in re.findall(r"[?&][\w.-]+=([^&\s]*)", uri)}
    for secret in sorted(hidden | {unquote(secret) for secret in hidden}, key=len, reverse=True):
        if len(secret) > 3:  # a shorter one is part of too many words; within addresses it is found below
            text = text.replace(secret, "***")
    text = re.sub(r"[^\s'\"]+", lambda word: "://".join(_hide_users(word[0].split("://"))), text)
    return re.sub(r"([?&][\w.-]+=)[^&\s'\"]*[^&\s'\":;,.)]", r"\1***", text)


def _hide_users(parts: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a word between each `://`, without what stands before an @ of an address.

    A password may hold a slash if a colon stands before it: `https://github.com/a/b@main` has none.
    """
    yield parts[0]
    for before, part in pairwise(parts):
        host = re.split("[/?#]", part, maxsplit=1)[0]
        end = (part if ":" in host else host).rfind("@") if before[-1:].isalnum() else -1
        yield part if end < 0 else f"***{part[end:]}"
