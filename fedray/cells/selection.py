"""How a user names cells of a sweep: `sweep --only`, `run --cell`, `rm --cell`."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from fedray.common.errors import UserError, truncate_repr


def select_cells(labels: Mapping[str, str], text: str, option: str) -> list[str]:
    """Return the hashes of the cells that a text names.

    Args:
        labels: hash -> label, in the sweep's order.
        text: a cell's number in that order (from 1, as `--dry-run` shows it), the beginning of its hash (at least 4
            digits), or a pattern of labels with `*` and `?`.
        option: what a message begins with.

    Raises:
        UserError: the text names no cell.
    """
    hashes = list(labels)
    if text.isdecimal() and 1 <= int(text) <= len(hashes):
        return [hashes[int(text) - 1]]
    found = [hash for hash in hashes if len(text) >= 4 and hash.startswith(text)]
    found = found or [hash for hash, label in labels.items() if fnmatchcase(label, text)]
    if not found:
        example = next(iter(labels.values()), "fedavg").partition(" ")[0]
        raise UserError(
            f"{option}: {truncate_repr(text)} names no cell; give a number from 1 to {len(hashes)}, the beginning of a "
            f"hash or a pattern of labels such as '{example}*'"
        )
    return found
