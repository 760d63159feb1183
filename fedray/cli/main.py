"""The command line: `fedray run | sweep | list | ui | data`, and the scripts in analysis/."""

import json
import os
import socket
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

import typer

import fedray
from fedray.cli.analysis import add_scripts
from fedray.cli.archive import export, import_, verify
from fedray.cli.data import data_app
from fedray.cli.listing import list_
from fedray.common.entry import entry
from fedray.common.errors import UserError, redacted, truncated_repr

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated-learning sweeps on Ray, tracked in MLflow.",
)

Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a dotted key; repeatable")]


def assignments(given: list[str] | None) -> dict[str, Any]:
    """Dotted key -> value of every `--set`. Raises UserError."""
    from fedray.common.yaml_files import parse_yaml

    found = {}
    for assignment in given or []:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set: found {truncated_repr(assignment)}; KEY=VALUE is required")
        found[key] = parse_yaml(value, f"--set {key}")
    return found


def _version(asked: bool) -> None:
    if asked:
        print(f"fedray {fedray.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="print the version and exit")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="a run's YAML file, or a sweep's (its first cell)")],
    cell: Annotated[
        str | None, typer.Option(metavar="N|HASH", help="of a sweep: this cell, as --dry-run shows")
    ] = None,
    set_: Set = None,
    backend: Annotated[str | None, typer.Option(help="inline | ray")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
    track: Annotated[bool, typer.Option(help="log to MLflow")] = True,
    profiled: Annotated[bool, typer.Option("--profile", help="where each round's time went")] = False,
) -> None:
    """One run."""
    from fedray.common.yaml_files import load_yaml
    from fedray.sweep.shipped import located

    file = located(file)
    point, changes = load_yaml(file), assignments(set_)  # a slip there is told before PyTorch is imported

    from rich.console import Console
    from rich.table import Table

    from fedray.api import simulate
    from fedray.config import RunConfig
    from fedray.engine.profile import Profile
    from fedray.sweep.cells import cell_point, label
    from fedray.sweep.grid import Sweep, changed

    if "base" in point:
        point = cell_point(Sweep.load(file), cell)
    elif cell is not None:
        raise UserError(f"--cell: {file} is one run, not a sweep")
    for key, value in changes.items():
        point = changed(point, key, value)
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
    file: Annotated[Path, typer.Argument(help="a sweep's YAML file, or a name of `fedray list sweeps`")],
    set_: Set = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CELL", help="a cell's number, hash, or a pattern of labels: 'fedtoga*'"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would run, and whether it fits")] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="with --dry-run: hours on this machine's GPU, or on a core where it has none; needs no data",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="run finished cells again, with --only just those")] = False,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="trials at a time; default: as many as fit")] = None,
    address: Annotated[str | None, typer.Option(help="auto | HOST:PORT | ray://HOST:PORT; else local")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="the file's own small version")] = False,
) -> None:
    """A grid of runs. Called again it resumes what is unfinished and skips what is finished."""
    from fedray.common.yaml_files import load_yaml
    from fedray.sweep.shipped import located

    file = located(file)
    load_yaml(file)  # a slip there is told before PyTorch is imported
    changes = assignments(set_)

    from fedray.sweep.grid import Sweep

    loaded = Sweep.load(file, smoke)
    if changes:
        loaded = loaded.altered(changes)
    if estimate:
        from fedray.sweep.estimate import show

        if not dry_run:
            raise UserError("--estimate: goes with --dry-run")
        show(loaded)
        return
    if address is not None and address.startswith("ray://") and not dry_run:
        from fedray.sweep.remote import sweep_in_cluster

        raise typer.Exit(sweep_in_cluster(loaded, address, force, max_concurrent, only or ()))
    from fedray.sweep.run import drive, planned, refuse_unwritable

    if not dry_run:
        refuse_unwritable()
    plan = planned(loaded, str(file), force, only or ())
    if dry_run:
        from fedray.sweep.dry_run import show as show_plan

        show_plan(plan, address)
    else:
        raise typer.Exit(drive(plan, max_concurrent, address))


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


app.command("list")(list_)
app.command("export")(export)
app.command("import")(import_)
app.command("verify")(verify)
app.add_typer(data_app, name="data")
add_scripts(app)


def main() -> None:
    """`fedray`."""
    _prefer_own_analysis()
    entry(app)


def _prefer_own_analysis() -> None:
    """Let `import analysis` find fedray's, although the working directory may hold a package of that name.

    The modules of the other package can still be imported where fedray's has none of their names.
    """
    import fedray

    if "analysis" in sys.modules:
        return
    own, here = Path(fedray.__file__).parents[1] / "analysis", Path.cwd() / "analysis"
    spec = spec_from_file_location("analysis", own / "__init__.py", submodule_search_locations=[str(own), str(here)])
    if spec is not None and spec.loader is not None:
        sys.modules["analysis"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["analysis"])
