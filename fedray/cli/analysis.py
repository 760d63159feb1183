"""The groups of `fedray --help`, and the commands of `fedray.analysis` and `fedray.papers`, imported when called."""

import importlib
from collections.abc import Callable
from typing import Any

import typer
import typer.core

from fedray.cli.listing import complete
from fedray.common.entry import make_app
from fedray.sweep.file.shipped import list_sweeps

GROUPS = {
    "run": ("run", "sweep", "status", "rm", "clean", "data", "list", "schema"),
    "look": ("ui", "tables", "figures", "compare", "report", "sharpness"),
    "share": ("export", "import", "verify"),
}
"""Heading in `fedray --help` -> its commands."""
LAZY = {
    "tables": ("analysis", "A sweep's result table: markdown, LaTeX or CSV."),
    "figures": ("analysis", "A sweep's figures: curves, sensitivity, bars and more."),
    "compare": ("analysis", "Every method's paired difference to a reference."),
    "report": ("analysis", "A sweep as one HTML page."),
    "sharpness": ("papers", "The Hessian's largest eigenvalues, and the loss around a model."),
}
"""Command -> the room whose `commands` have it, and its line in `fedray --help`."""
VALUES: dict[str, Callable[[], list[str]]] = {
    "name": lambda: [*complete("stored", ""), *list_sweeps()],
    "sweep": lambda: complete("stored", ""),
    "metric": lambda: complete("metrics", ""),
    "paper": lambda: list(importlib.import_module("fedray.analysis.tables.published").list_tables()),
    "kind": lambda: list(importlib.import_module("fedray.analysis.commands.figures").KINDS),
}
"""Parameter of these commands -> the values that a shell completes."""


class Commands(typer.core.TyperGroup):
    """The commands in groups, those of `LAZY` without an import before they are called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in LAZY:
            return super().get_command(ctx, cmd_name)
        main = importlib.import_module(f"fedray.{LAZY[cmd_name][0]}.commands.{cmd_name}").main
        command: Any = typer.main.get_command(make_app(main))
        for parameter in command.params:
            if parameter.name in VALUES:
                parameter._custom_shell_complete = _complete
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, names in GROUPS.items():
            with formatter.section(heading.capitalize()):
                helps = {name: command.get_short_help_str(limit=1000) for name, command in self.commands.items()}
                helps |= {name: line for name, (_, line) in LAZY.items()}
                formatter.write_dl([(name, helps[name]) for name in names])


def _complete(ctx: Any, parameter: Any, incomplete: str) -> list[str]:
    """Return the values that begin so; of several with commas, for the last."""
    first = incomplete[: incomplete.rfind(",") + 1]
    return [first + value for value in VALUES[parameter.name]() if (first + value).startswith(incomplete)]
