"""The command line: `fedray ui`, the groups of `fedray --help`, and the commands of the other modules here; commands of
`fedray.analysis` and `fedray.papers` are imported when they are called.
"""

import errno
import importlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

import fedray
from fedray.cli import server
from fedray.cli.data import data_app
from fedray.cli.listing import complete, list_, schema
from fedray.cli.run import RunRequest
from fedray.cli.runs import OF_STORE, clean, export, import_, print_status, remove_runs, verify
from fedray.cli.sweep import SweepRequest
from fedray.common.entry import HELP, make_app, make_command, run_command
from fedray.common.errors import UserError, redact
from fedray.common.process import block_signal
from fedray.sweep.document import list_sweeps

GROUPS = {
    "run": ("run", "sweep", "status", "rm", "clean", "data", "list", "schema"),
    "look": ("ui", "tables", "figures", "compare", "report", "sharpness"),
    "share": ("export", "import", "verify"),
}
"""Heading in `fedray --help` -> its commands."""
LAZY = {
    "tables": ("fedray.analysis.tables.build", "A sweep's result table: markdown, LaTeX or CSV."),
    "figures": ("fedray.analysis.figures", "A sweep's figures: curves, sensitivity, bars and more."),
    "compare": ("fedray.analysis.comparison", "Every method's paired difference to a reference."),
    "report": ("fedray.analysis.report", "A sweep as one HTML page."),
    "sharpness": ("fedray.papers.sharpness", "The Hessian's largest eigenvalues, and the loss around a model."),
}
"""Command -> the module whose `main` it is, and its line in `fedray --help`."""
VALUES: dict[str, Callable[[], list[str]]] = {
    "name": lambda: [*complete("stored", ""), *list_sweeps()],
    "sweep": lambda: complete("stored", ""),
    "metric": lambda: complete("metrics", ""),
    "paper": lambda: list(importlib.import_module("fedray.analysis.tables.published").list_tables()),
    "kind": lambda: list(importlib.import_module("fedray.analysis.figures").KINDS),
}
"""Parameter of these commands -> the values that a shell completes."""


class Commands(typer.core.TyperGroup):
    """The commands in groups; `LAZY` ones are imported when they are called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        later = {name: typer.core.TyperCommand(name, short_help=line) for name, (_, line) in LAZY.items()}
        self.commands = {**later, **self.commands}  # in place of `LAZY` ones, for help and for mistyped names

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in LAZY:
            return super().get_command(ctx, cmd_name)

        def complete_last(ctx: Any, parameter: Any, incomplete: str) -> list[str]:
            first = incomplete[: incomplete.rfind(",") + 1]  # of several values with commas
            return [first + value for value in VALUES[parameter.name]() if (first + value).startswith(incomplete)]

        main = importlib.import_module(LAZY[cmd_name][0]).main
        command: Any = typer.main.get_command(make_app(main))
        for parameter in command.params:
            if parameter.name in VALUES:
                parameter._custom_shell_complete = complete_last
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        helps = {name: command.get_short_help_str(limit=1000) for name, command in self.commands.items()}
        for heading, names in GROUPS.items():
            with formatter.section(heading.capitalize()):
                formatter.write_dl([(name, helps[name]) for name in names])


app = typer.Typer(
    cls=Commands,
    context_settings=HELP | {"max_content_width": 100},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated-learning sweeps on Ray, tracked in MLflow. "
    "First `fedray sweep quickstart`, then `fedray tables quickstart`.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedray {fedray.__version__}")
        raise typer.Exit


@app.callback()
def accept_options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
) -> None:
    pass


@app.command("ui")
def open_ui(
    name: Annotated[
        str, typer.Argument(metavar="[SWEEP]", help="compare this sweep's cells; else all cells", **OF_STORE)
    ] = "",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
    host: Annotated[
        str, typer.Option(help="address to bind; any other than 127.0.0.1 exposes the UI without authentication")
    ] = "127.0.0.1",
) -> None:
    """Open MLflow's UI on this directory's store.

    MLFLOW_TRACKING_URI names another store; of a server the addresses are printed. The UI's own is 127.0.0.1 unless you
    give --host.
    """
    from fedray.common.location import is_server, locate_server, store_uri
    from fedray.tracking.view import admit, save_view, serves_store

    uri = store_uri()
    if is_server(uri) and (host, port) != ("127.0.0.1", 5000):
        raise UserError(
            f"--{'host' if port == 5000 else 'port'}: {redact(uri)} is a server, which is already listening"
        )
    try:
        views = save_view(name)
    except KeyboardInterrupt:  # nothing that could be resumed
        sys.exit(130)
    if is_server(uri):
        page, more = _list_addresses(views, locate_server(uri))
        print(f"the server shows the runs at {page}{more}")
        return
    bound = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    shown, admitted = admit(host, port)
    page, more = _list_addresses(views, f"http://{f'[{shown}]' if ':' in shown else shown}:{port}")
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        if error.errno == errno.EADDRINUSE and serves_store(f"http://{bound}"):
            print(f"MLflow, which is running, shows the runs at {page}{more}")
            return
        option = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise UserError(
            f"--{option}: {host}:{port} cannot be listened at: {error.strerror}; give another --{option}"
        ) from None
    print("MLflow starts; its address follows when it answers", flush=True)
    with block_signal(signal.SIGINT):  # of the announcer, and of the server until it takes it
        subprocess.Popen([sys.executable, "-P", server.__file__, "announce", bound, page, more])  # noqa: S603
        # The store's address can contain a password: an environment is private, a command line is not. MLflow's jobs
        # judge language models, in eight processes that start before the server answers. With a lifespan (it clears up
        # after MLflow's assistant) Ctrl-C ends in a traceback.
        os.execve(  # noqa: S606
            sys.executable,
            # Neither this process nor the server that it starts imports from the working folder.
            [
                *(sys.executable, "-P", server.__file__, "serve"),
                *("ui", "--host", host, "--port", str(port), "--workers", "1"),
                *("--uvicorn-opts", f"--app-dir {shlex.quote(sys.prefix)} --log-level warning --lifespan off"),
            ],
            {"MLFLOW_REGISTRY_STORE_URI": uri}  # or MLflow says that it takes this one
            | admitted
            | os.environ
            | {
                "MLFLOW_BACKEND_STORE_URI": uri,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "PYTHONSAFEPATH": "1",
                "PYTHONWARNINGS": "ignore",  # deprecations inside of MLflow
            },
        )


def _list_addresses(views: dict[str, str], place: str) -> tuple[str, str]:
    """Return the first view's address, and lines with the others'."""
    (_, page), *others = views.items()
    return place + page, "".join(f"\n  {what}: {place}{view}" for what, view in others)


app.command("run")(make_command(RunRequest))
app.command("sweep")(make_command(SweepRequest))
app.command("list")(list_)
app.command("schema")(schema)
app.command("export")(export)
app.command("import")(import_)
app.command("verify")(verify)
app.command("status")(print_status)
app.command("rm")(remove_runs)
app.command("clean")(clean)
app.add_typer(data_app, name="data")


def main() -> None:
    """`fedray`."""
    run_command(app)
