"""A table of results, whatever it is printed as."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """A paper's number; value is None where it prints that a target was not reached."""

    value: float | None
    std: float | None


@dataclass(frozen=True)
class Entry:
    """One place of a table. mean and std are over the finished seeds; std is None for a single one."""

    mean: float | None
    std: float | None
    seeds: int
    others: Counter[str]
    """How many seeds have which other outcome (missing, failed, diverged, stopped, running, interrupted, never)."""
    change: float | None = None
    """Against the reference: its difference, or for rounds the speed-up; None where either is not whole."""
    printed: Printed | None = None

    @property
    def whole(self) -> bool:
        return self.mean is not None and not self.others

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.mean is None or self.printed is None or self.printed.value is None:
            return None
        return self.mean - self.printed.value

    def note(self) -> str:
        """`(1 diverged, 2 missing)`, or nothing for a complete entry."""
        return f"({', '.join(f'{n} {status}' for status, n in sorted(self.others.items()))})" if self.others else ""


@dataclass(frozen=True)
class ResultTable:
    """Rows x columns of entries, with what has to be said beside them."""

    title: str
    rows: list[str]
    columns: list[str]
    entries: dict[tuple[str, str], Entry]
    ranks: dict[tuple[str, str], int]
    """1 for the best complete entry of a column, 2 for the second best (equal values share a rank)."""
    notes: list[str]
    digits: int = 2
    reference: str = ""
    """The row to which `Entry.change` refers."""
    ratio: bool = False
    """Whether that is a speed-up."""
    paper: str = ""
    """The published table beside ours."""
