"""The options that decide a table's entries, and the command line that states them in LaTeX sources."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from fedray.analysis.data.collect import SweepTable
from fedray.analysis.tables.build import build
from fedray.analysis.tables.result_table import ResultTable
from fedray.cells.metric import DEFAULT
from fedray.common.errors import UserError, escape, truncate_repr

COMMAND = "fedray tables"
"""Beginning of the comment that a LaTeX table and a file of macros hold."""
WITHOUT_EFFECT = ("format", "macros")
"""Options in a comment that change no entry."""


@dataclass(frozen=True)
class TableOptions:
    """Options of `fedray tables`, besides the sweep; `build` explains them."""

    metric: str = DEFAULT
    rows: str = ""
    cols: str = ""
    reference: str = ""
    paper: str = ""
    average_over: str = ""
    best_except: str | None = None

    def build(self, sweep: SweepTable) -> ResultTable:
        """Return the table. Raises UserError as `fedray.analysis.tables.build.build` does."""
        return build(
            sweep,
            self.metric,
            self.rows,
            self.cols,
            self.reference,
            self.paper,
            self.average_over,
            self.best_except,
        )

    def to_command(self, sweep: str, more: Mapping[str, str]) -> str:
        """Return the command line, in one line, that gives this table.

        Args:
            sweep: its name.
            more: options without effect on the entries: `format`, `macros`.
        """
        changed = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        words = [word for name, value in {**changed, **more}.items() for word in (_to_option(name), value) if value]
        if self.best_except == "":
            words.append("--best-except=")
        return escape(shlex.join([*COMMAND.split(), sweep, *words]))

    @classmethod
    def parse(cls, command: str, where: str) -> tuple[str, Self, set[str]]:
        """Read a command line that `to_command` wrote.

        Args:
            command: the comment's text.
            where: file and line, for messages.

        Returns:
            The sweep's name, the options, and the names of the options without effect.

        Raises:
            UserError: it is not such a command.
        """
        known = {_to_option(name): name for name in (*(one.name for one in fields(cls)), *WITHOUT_EFFECT)}
        try:
            _, _, sweep, *words = shlex.split(command)
        except ValueError:
            raise UserError(f"{where}: found {truncate_repr(command)}; `{COMMAND} NAME ...` is required") from None
        found: dict[str, str] = {}
        while words:
            option, equals, value = words.pop(0).partition("=")
            if option not in known or not (equals or words):
                allowed = ", ".join(f"{one} VALUE" for one in known)
                raise UserError(f"{where}: found {truncate_repr(option)} in `{COMMAND}`; allowed: {allowed}")
            found[known[option]] = value if equals else words.pop(0)
        without = found.keys() & set(WITHOUT_EFFECT)
        return sweep, cls(**{name: value for name, value in found.items() if name not in without}), set(without)


def _to_option(name: str) -> str:
    return "--" + name.replace("_", "-")
