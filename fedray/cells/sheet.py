"""A sweep that has been made into cells, wherever it is: planned, running, in the store, in an archive, in a table."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.status import Status
from fedray.common.errors import UserError, truncate_repr


@dataclass(frozen=True)
class Sheet:
    """The cells of a sweep, and what is known of their runs.

    Attributes:
        name: the sweep's.
        cells: hash -> cell, in the sweep's order.
        records: hash -> record of the run that counts, of the cells that have one; a call adds those of its cells.
        description: of the sweep's file.
        file: that file as text, with the changes of `--smoke` and `--set`; empty if it is not known.
    """

    name: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    description: str = ""
    file: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return name, description and cells in JSON types."""
        cells = [cell.to_json() for cell in self.cells.values()]
        return {"name": self.name, "description": self.description, "cells": cells}

    def get_status(self, cell: str) -> Status:
        """Return the status of a cell, given its hash."""
        return self.records[cell].ending.status if cell in self.records else Status.MISSING

    @property
    def counts(self) -> Counter[Status]:
        """Number of cells with each status."""
        return Counter(map(self.get_status, self.cells))

    def select(self, text: str, option: str) -> list[str]:
        """Return the hashes of the cells that a text names: by a number in the sweep's order (from 1, as `--dry-run`
        shows it), the beginning of a hash (at least 4 digits), or a pattern of labels with `*` and `?`.

        Raises UserError, which begins with `option`, if it names none.
        """
        return select_labels({hash: cell.label for hash, cell in self.cells.items()}, text, option)


def select_labels(labels: Mapping[str, str], text: str, option: str) -> list[str]:
    """Return the hashes, of hash -> label, that a text names, as for `Sheet.select`."""
    hashes = list(labels)
    if text.isdecimal() and 1 <= int(text) <= len(hashes):
        return [hashes[int(text) - 1]]
    named = [hash for hash in hashes if len(text) >= 4 and hash.startswith(text)]
    pattern = text.replace("[", "[[]")  # only * and ? are special
    named = named or [hash for hash, label in labels.items() if fnmatchcase(label, pattern)]
    if not named:
        first = next(iter(labels.values()), "fedavg").partition(" ")[0]
        also = ", the beginning of a hash" * all(map(str.isalnum, hashes))  # `list_distinct` has other keys
        raise UserError(
            f"{option}: {truncate_repr(text)} names no cell; give a number from 1 to {len(hashes)}{also} or a pattern "
            f"of labels such as '{first}*'"
        )
    return named
