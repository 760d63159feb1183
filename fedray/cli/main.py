"""The command line: `fedray run | sweep | list | ui | data`, and the scripts in analysis/."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedray.cli.analysis import add_scripts
from fedray.cli.data import data_app
from fedray.common.component import Component
from fedray.common.entry import entry
from fedray.common.errors import UserError, redacted, truncated_repr

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated-learning sweeps on Ray, tracked in MLflow.",
)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="a run's YAML file, or a sweep's (its base, at its defaults)")],
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a dotted key")] = None,
    backend: Annotated[str | None, typer.Option(help="inline | ray")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
    track: Annotated[bool, typer.Option(help="log to MLflow")] = True,
    profiled: Annotated[bool, typer.Option("--profile", help="where each round's time went")] = False,
) -> None:
    """One run."""
    from fedray.api import simulate
    from fedray.common.yaml_files import load_yaml, parse_yaml
    from fedray.config import RunConfig
    from fedray.engine.profile import Profile
    from fedray.sweep.cells import label
    from fedray.sweep.grid import changed

    point: dict[str, Any] = load_yaml(file)
    point = point.get("base", point)
    if not isinstance(point, dict):
        raise UserError(f"{file}: base: found {truncated_repr(point)}; a mapping is required")
    for assignment in set_ or []:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set: found {truncated_repr(assignment)}; KEY=VALUE is required")
        point = changed(point, key, parse_yaml(value, f"--set {key}"))
    if backend is not None:
        point = changed(point, "runtime.backend", backend)
    try:
        config = RunConfig.parse(point)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    profile = Profile() if profiled else None
    result = simulate(config, track=label(point, config) if track else None, profile=profile)
    summary = result.summary()
    if as_json:
        print(json.dumps(summary if profile is None else summary | {"profile": profile.metrics()}))
        return
    personal = {"PA %": "personal_accuracy", "GA %": "generic_accuracy"} if "personal_accuracy" in summary else {}
    table = Table("round", "test accuracy %", "test loss", "train loss", *personal, box=None)
    for row in result.history[-10:]:
        table.add_row(
            f"{row['round']:.0f}",
            f"{row['test_accuracy']:.2f}",
            f"{row['test_loss']:.4g}",
            f"{row['train_loss']:.4g}",
            *(f"{row[name]:.2f}" if name in row else "" for name in personal.values()),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{label(point, config)}: {summary['seconds_per_round']:.3g} s per round")
    console.print(f"theta_sha256 {summary['theta_sha256']}", soft_wrap=True)
    if profile is not None:
        console.print(profile.table())


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="a sweep's YAML file")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would run, and whether it fits")] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="with --dry-run: hours on this machine's GPU, or on a core where it has none; needs no data",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="run finished cells again")] = False,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="trials at a time; default: as many as fit")] = None,
    address: Annotated[str | None, typer.Option(help="auto | HOST:PORT | ray://HOST:PORT; else local")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="the file's own small version")] = False,
) -> None:
    """A grid of runs. Called again it resumes what is unfinished and skips what is finished."""
    from fedray.sweep.grid import Sweep

    loaded = Sweep.load(file, smoke)
    if estimate:
        from fedray.sweep.estimate import show

        if not dry_run:
            raise UserError("--estimate: goes with --dry-run")
        show(loaded)
        return
    if address is not None and address.startswith("ray://") and not dry_run:
        from fedray.sweep.remote import sweep_in_cluster

        raise typer.Exit(sweep_in_cluster(loaded, address, force, max_concurrent))
    from fedray.sweep.run import drive, planned

    plan = planned(loaded, str(file), force)
    if dry_run:
        from fedray.sweep.dry_run import show as show_plan

        show_plan(plan, address)
    else:
        raise typer.Exit(drive(plan, max_concurrent, address))


@app.command("list")
def list_(what: Annotated[str, typer.Argument(metavar="algorithms|models|datasets|partitions")]) -> None:
    """Names, options with defaults, papers; what algorithms cost, in multiples of the model (docs/algorithms.md)."""
    from fedray.algorithms import ALGORITHMS
    from fedray.common.errors import unknown
    from fedray.datasets import DATASETS
    from fedray.engine.cost import cost
    from fedray.models import MODELS
    from fedray.partitions import PARTITIONS

    registries: dict[str, Any] = {
        "algorithms": ALGORITHMS,
        "models": MODELS,
        "datasets": DATASETS,
        "partitions": PARTITIONS,
    }
    if what not in registries:
        raise unknown("list", what, registries)
    costs = {name: str(cost(kind())) for name, kind in ALGORITHMS.items()} if what == "algorithms" else {}
    table = Table("name", "options", "what", "paper", *["cost"] * bool(costs), box=None, pad_edge=False)
    kinds: dict[str, type[Component]] = registries[what]
    for name, kind in sorted(kinds.items()):
        table.add_row(name, *kind.row(), *([costs[name]] if costs else []))
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
    host: Annotated[str, typer.Option(help="address to listen at; any other lets others in, unasked")] = "127.0.0.1",
) -> None:
    """MLflow's UI on this directory's store (or MLFLOW_TRACKING_URI), on 127.0.0.1 unless told otherwise."""
    from fedray.tracking.store import open_store, store_uri

    uri = store_uri()
    if uri.startswith(("http://", "https://")):
        raise UserError(f"MLFLOW_TRACKING_URI: {redacted(uri)} is a server, which shows its own UI in a browser")
    open_store()
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise UserError(f"--port: {host}:{port} cannot be listened at: {error.strerror}; give another --port") from None
    # The address of the store can hold a password: an environment is private, a command line is not.
    os.execve(  # noqa: S606
        sys.executable,
        [sys.executable, "-m", "mlflow", "ui", "--host", host, "--port", str(port)],
        os.environ | {"MLFLOW_BACKEND_STORE_URI": uri},
    )


app.add_typer(data_app, name="data")
add_scripts(app)


def main() -> None:
    """`fedray`."""
    entry(app)
