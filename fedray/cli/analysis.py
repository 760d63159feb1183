"""`fedray tables | compare | leaderboard | rank | ...`: the commands of COMMANDS, imported when called."""

import importlib

import typer

COMMANDS = {
    "tables": "A sweep's result table: markdown, LaTeX or CSV.",
    "check": "Whether a paper's tables and macros still agree with the store.",
    "figures": "A sweep's figures: learning curves, sensitivity, bars, class accuracies, partitions.",
    "compare": "Every method's paired difference to a reference.",
    "claims": "Check the claims of a paper or a sweep against results.",
    "cite": "BibTeX of a method, or of what a sweep uses.",
    "report": "A sweep as one HTML page.",
    "leaderboard": "A tuned sweep's cells as CSV, and the picture of its standings.",
    "rank": "A method of yours on a leaderboard, with the same budget, seeds and setting.",
    "tuned": "The options that a leaderboard's tuning chose for a method, as YAML.",
    "sharpness": "The Hessian's largest eigenvalues at a run's checkpoint, and the loss around it.",
}
"""Module of fedray/analysis/commands/ -> its line in `fedray --help`."""
FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Arguments and options are passed to the command unchanged, including `--help`."""


def add_analysis(app: typer.Typer) -> None:
    """Add every command of COMMANDS to the command line; `fedray NAME ...` is `python -m analysis.NAME ...`."""
    for name, help in COMMANDS.items():
        app.command(name, help=help, add_help_option=False, context_settings=FORWARDED)(_run)


def _run(context: typer.Context) -> None:
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    command.command()(importlib.import_module(f"fedray.analysis.commands.{context.info_name}").main)
    if code := command(context.args, prog_name=context.command_path, standalone_mode=False):
        raise typer.Exit(code)
