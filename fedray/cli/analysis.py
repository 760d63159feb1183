"""Commands that live in `fedray.analysis` and `fedray.papers`, imported when called."""

import importlib
from collections.abc import Sequence
from typing import Any

import typer
import typer.core

from fedray.cli.listing import complete
from fedray.common.entry import make_app
from fedray.sweep.file.shipped import list_sweeps

ANALYSIS = {
    "tables": "A sweep's result table: markdown, LaTeX or CSV.",
    "figures": "A sweep's figures: curves, sensitivity, bars and more.",
    "compare": "Every method's paired difference to a reference.",
    "report": "A sweep as one HTML page.",
}
"""Module of fedray/analysis/commands/ -> its line in `fedray --help`."""
PAPERS = {
    "sharpness": "The Hessian's largest eigenvalues, and the loss around a model.",
}
"""Module of fedray/papers/commands/ -> its line in `fedray --help`."""
FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Arguments and options are passed to the command unchanged, including `--help`."""


class Forwarded(typer.core.TyperCommand):
    """A command whose arguments another module parses; it completes its options and what `list_next` knows."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        # bash breaks a word at its colon, `rounds_to : fed`, and takes what follows the colon
        *before, word = "\n".join([*ctx.args, incomplete]).replace("\n:", ":").replace(":\n", ":").split("\n")
        known = word[: word.rfind(":") + 1] if len(before) < len(ctx.args) else ""
        if word.startswith("-"):
            options = [option for one in _list_parameters(ctx.info_name) for option in one.opts]
            names = [*(option for option in options if option.startswith("--")), "--help"]
        else:
            names = list_next(ctx.info_name, before, word)
        found = [name.removeprefix(known) for name in dict.fromkeys(names) if name.startswith(word)]
        package = typer.core.TyperCommand.__base__.__module__.rpartition(".")[0]  # click, or typer's own copy of it
        item = importlib.import_module(f"{package}.shell_completion").CompletionItem
        return [item(one) for one in found]


def list_next(command: str, before: Sequence[str], word: str) -> list[str]:
    """Return the words that may follow `before` on a command line: an option's values, names.

    Args:
        command: `tables`, say.
        before: the words after it.
        word: what the next one begins with.
    """
    option = before[-1] if before else ""
    if option == "--metric":
        first = word[: max(word.rfind(","), word.rfind("+")) + 1]  # of several metrics
        targets = [f"rounds_to:{name}" for name in complete("algorithms", "")] if word != first else []
        return [first + name for name in (*complete("metrics", ""), *targets)]
    if option == "--paper":
        return list(importlib.import_module("fedray.analysis.tables.published").list_tables())
    if option == "--kind":
        return list(importlib.import_module("fedray.analysis.commands.figures").KINDS)
    if option == "--format":
        tables = importlib.import_module("fedray.analysis.commands.tables")
        return [*tables.FORMATS, *tables.RUN_BY_RUN]
    if any(option in one.opts and not one.is_flag for one in _list_parameters(command)):
        return []
    unrun = list_sweeps() if command in ("tables", "figures") else []  # for `--published` and `--kind partition`
    return [*complete("stored", ""), *unrun]


def add_analysis(app: typer.Typer) -> None:
    """Add every command to the command line; `fedray NAME ...` is `python -m analysis.NAME ...`."""
    for name, help in (ANALYSIS | PAPERS).items():
        app.command(name, cls=Forwarded, help=help, add_help_option=False, context_settings=FORWARDED)(_run)


def _run(context: typer.Context) -> None:
    """Call the command with the arguments as they are."""
    command = _load(str(context.info_name))
    if code := command(context.args, prog_name=context.command_path, standalone_mode=False):
        raise typer.Exit(code)


def _load(name: str) -> typer.Typer:
    room = "papers" if name in PAPERS else "analysis"
    return make_app(importlib.import_module(f"fedray.{room}.commands.{name}").main)


def _list_parameters(name: str) -> list[Any]:
    return list(typer.main.get_command(_load(name)).params)
