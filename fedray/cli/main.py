"""The command line: `fedray sweep`, `fedray ui`, and what the modules beside this one add."""

import errno
import math
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import fedray
from fedray.cli.analysis import Commands
from fedray.cli.archive import export, import_, verify
from fedray.cli.data import data_app
from fedray.cli.listing import list_, schema
from fedray.cli.run import Set, complete_file, parse_assignments, run
from fedray.cli.runs import OF_STORE, clean, print_status, remove_runs
from fedray.common.entry import CELL, HELP, format_json, run_command
from fedray.common.errors import DataMissing, UserError, format_count, name_place, redact

MOST = 100_000
"""Largest number of nodes, of a node's CPUs, and of trials at a time that is no mistake."""

app = typer.Typer(
    cls=Commands,
    context_settings=HELP | {"max_content_width": 100},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated-learning sweeps on Ray, tracked in MLflow.",
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


app.command()(run)


@app.command("sweep")
def run_sweep(
    file: Annotated[
        Path,
        typer.Argument(help="a sweep's YAML file, or a name of `fedray list sweeps`", autocompletion=complete_file),
    ],
    set_: Set = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CELL", help=f"only these cells, {CELL}; can be repeated"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would run, and whether it fits")] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="with --dry-run: hours on this machine's GPU, or on one core if it has none; needs no data",
        ),
    ] = False,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="with --dry-run: plan for a cluster of so many nodes; needs no data"),
    ] = None,
    cpus_per_node: Annotated[int | None, typer.Option(min=1, max=MOST, help="with --nodes")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=0, max=MOST, help="with --nodes; default: none")] = None,
    seconds_per_round: Annotated[
        float | None, typer.Option(help="with --nodes: seconds of a round there, which you have measured")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="run finished cells again; with --only, just those")] = False,
    max_concurrent: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="trials at a time; default: as many as fit")
    ] = None,
    address: Annotated[str | None, typer.Option(help="auto | HOST:PORT; else local")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="run the small version that the file defines")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="with --dry-run alone: the cells as JSON")] = False,
) -> None:
    """Run a sweep. Called again, it resumes unfinished cells and skips finished ones."""
    from fedray.sweep.file.document import load_document
    from fedray.sweep.file.shipped import locate_sweep

    named, file = file, locate_sweep(file)
    document = load_document(file)  # a mistake in it is reported before PyTorch is imported
    if "algorithm" in document and not {"name", "base"} & document.keys():
        raise UserError(f"{file}: is the configuration of one run, which `fedray run` takes; a sweep has name and base")
    changes = parse_assignments(set_)

    from fedray.sweep.file.sweep import Sweep

    loaded = Sweep.parse(document, smoke, file)
    source = f"{file}{' with --smoke' * smoke}{' with --set' * bool(changes)}"
    if changes:
        loaded = loaded.with_overrides(changes)
    if not dry_run:
        for option, given in (("estimate", estimate), ("nodes", nodes), ("json", as_json)):
            if given:
                raise UserError(f"--{option}: goes with --dry-run")
    refuse_half_a_cluster(nodes, cpus_per_node, gpus_per_node, seconds_per_round)
    if estimate or nodes:
        from fedray.sweep.driver.dry_run import list_local_nodes, print_forecast
        from fedray.sweep.driver.stages import make_tune_stage, preview_final_stage
        from fedray.sweep.plan.estimate import list_distinct, print_estimate

        if as_json:
            raise UserError("--json: --estimate and --nodes print no JSON; --dry-run --json alone lists the cells")
        for option, value in (("only", only), ("force", force), ("address", address)):
            if value:
                raise UserError(
                    f"--{option}: --estimate and --nodes are of all cells, and look nothing up; leave it out"
                )
        room = [{"CPU": float(cpus_per_node or 0), "GPU": float(gpus_per_node or 0)}] * (nodes or 0)
        for one in [loaded] if loaded.tune is None else [make_tune_stage(loaded), preview_final_stage(loaded)]:
            with name_place(source):
                runs = list_distinct(one)
            print(f"{one.name}: {format_count(len(runs), 'cell')}")
            seconds = print_estimate(one) if estimate else [None] * len(runs)
            print_forecast(runs, room or list_local_nodes(), seconds, seconds_per_round)
        if nodes:
            asked = f"--nodes={nodes} --cpus-per-task={cpus_per_node}" + f" --gpus-per-node={gpus_per_node}" * bool(
                gpus_per_node
            )
            print(f"under Slurm: sbatch {asked} slurm.sh {named}; `fedray list clusters slurm.sh > slurm.sh` writes it")
        return
    if as_json:
        from fedray.sweep.driver.stages import make_tune_stage
        from fedray.sweep.plan.plan import make_plan

        blocks = [one if one.tune is None else make_tune_stage(one) for one in loaded.list_blocks()]
        with name_place(source):
            plans = [make_plan(one, force, only or ()) for one in blocks]
        left = {cell.hash for plan in plans for cell in plan.to_run}
        cells = [
            {"hash": cell.hash, "label": cell.label, "to_run": cell.hash in left}
            | ({"status": plan.known[cell.hash].ending.status} if cell.hash in plan.known else {})
            for plan in plans
            for cell in plan.cells.values()
        ]
        name = loaded.name if len(blocks) > 1 else blocks[0].name
        print(format_json({"name": name, "cells": cells, "unlisted": sum(plan.unlisted for plan in plans)}))
        return
    from fedray.sweep.driver.stages import make_tune_stage, run_file

    try:
        code = run_file(loaded, source, force, only or (), max_concurrent, address, dry_run)
    except DataMissing as error:
        if not dry_run:
            raise
        from fedray.sweep.driver.dry_run import print_cells

        print_cells(loaded if loaded.tune is None else make_tune_stage(loaded))
        print(f"fedray: what has run and whether it can run are not known without the data: {error}", file=sys.stderr)
        code = 0
    raise typer.Exit(code)


def refuse_half_a_cluster(nodes: int | None, cpus: int | None, gpus: int | None, seconds: float | None) -> None:
    """Raise UserError for options that describe a part of a cluster, or a time that is none."""
    for option, given in (("cpus-per-node", cpus), ("gpus-per-node", gpus), ("seconds-per-round", seconds)):
        if given is not None and nodes is None:
            raise UserError(f"--{option}: goes with --nodes")
    if nodes is not None and cpus is None:
        raise UserError("--cpus-per-node: is required with --nodes")
    if seconds is not None and not 0 < seconds < math.inf:
        raise UserError(f"--seconds-per-round: found {seconds}; a number above 0 is required")


OPENER = """
import socket, sys, time, webbrowser
host, port, page = sys.argv[1:]
for _ in range(240):
    try:
        socket.create_connection((host, int(port)), 1).close()
        webbrowser.open(page)
        break
    except OSError:
        time.sleep(0.5)
"""
"""Opens a browser once the server listens; a separate process, because the server replaces this one."""


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

    MLFLOW_TRACKING_URI names another store. The address is 127.0.0.1 unless you give --host.
    """
    from fedray.common.location import is_server, store_uri
    from fedray.tracking.view import admit, save_view

    uri = store_uri()
    if is_server(uri):
        raise UserError(f"MLFLOW_TRACKING_URI: {redact(uri)} is a server, which shows its own UI in a browser")
    view = save_view(name)
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        option = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise UserError(
            f"--{option}: {host}:{port} cannot be listened at: {error.strerror}; give another --{option}"
        ) from None
    shown, admitted = admit(host, port)
    page = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}{view}"
    print(f"MLflow shows the runs at {page} in a moment; Ctrl-C ends it", flush=True)
    if sys.stdout.isatty():
        subprocess.Popen([sys.executable, "-P", "-c", OPENER, host, str(port), page])  # noqa: S603
    # The store's address can contain a password: an environment is private, a command line is not. MLflow's jobs judge
    # language models, in eight processes that start before the server answers.
    os.execve(  # noqa: S606
        sys.executable,
        # Neither this process nor the server that it starts imports from the working folder.
        [
            *(sys.executable, "-P", "-m", "mlflow", "ui", "--host", host, "--port", str(port), "--workers", "1"),
            *("--uvicorn-opts", f"--app-dir {shlex.quote(sys.prefix)}"),
        ],
        admitted
        | os.environ
        | {
            "MLFLOW_BACKEND_STORE_URI": uri,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "PYTHONSAFEPATH": "1",
        },
    )


app.command("list")(list_)
app.command()(schema)
app.command("export")(export)
app.command("import")(import_)
app.command("verify")(verify)
app.command("status")(print_status)
app.command("rm")(remove_runs)
app.command()(clean)
app.add_typer(data_app, name="data")


def main() -> None:
    """`fedray`."""
    run_command(app)
