"""The command line: `fedray run | sweep | list | ui | data`."""

import json
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from fedray.commands_data import data_app
from fedray.component import Component
from fedray.errors import Diverged, UserError, redacted, shown

if TYPE_CHECKING:
    from fedray.sweepfile import Sweep

UsageError: Any = typer.BadParameter.__base__
"""click's, wherever this version of typer has it."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Federated-learning sweeps on Ray, tracked in MLflow.")


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
    from fedray.config import RunConfig
    from fedray.files import load_yaml, parse_yaml
    from fedray.profile import Profile
    from fedray.sweepfile import changed, label

    point: dict[str, Any] = load_yaml(file)
    point = point.get("base", point)
    if not isinstance(point, dict):
        raise UserError(f"{file}: base: found {shown(point)}; a mapping is required")
    for assignment in set_ or []:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set: found {shown(assignment)}; KEY=VALUE is required")
        point = changed(point, key, parse_yaml(value, f"--set {key}"))
    if backend is not None:
        point = changed(point, "runtime.backend", backend)
    try:
        config = RunConfig.parse(point)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    profile = Profile() if profiled else None
    if track:
        from fedray.single import tracked

        result = tracked(config, label(point, config), profile)
    else:
        result = simulate(config, profile=profile)
    summary = result.summary()
    if as_json:
        print(json.dumps(summary if profile is None else summary | {"profile": profile.metrics()}))
        return
    personal = {"PA %": "personal_accuracy", "GA %": "generic_accuracy"} if "personal_accuracy" in summary else {}
    table = Table("round", "test accuracy %", "test loss", "train loss", *personal, box=None)
    for row in result.history[-10:]:
        table.add_row(f"{row['round']:.0f}", f"{row['test_accuracy']:.2f}", f"{row['test_loss']:.4g}",
                      f"{row['train_loss']:.4g}",
                      *(f"{row[name]:.2f}" if name in row else "" for name in personal.values()))
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
    estimate: Annotated[bool, typer.Option("--estimate", help="with --dry-run: hours on this machine's GPU, or on a "
                                           "core where it has none; needs no data")] = False,
    force: Annotated[bool, typer.Option("--force", help="run finished cells again")] = False,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="trials at a time; default: as many as fit")] = None,
    address: Annotated[str | None, typer.Option(help="auto | HOST:PORT | ray://HOST:PORT; else local")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="the file's own small version")] = False,
) -> None:
    """A grid of runs. Called again it resumes what is unfinished and skips what is finished."""
    from fedray.sweepfile import Sweep

    loaded = Sweep.load(file, smoke)
    if estimate:
        from fedray.estimate import show

        if not dry_run:
            raise UserError("--estimate: goes with --dry-run")
        show(loaded)
        return
    if address is not None and address.startswith("ray://") and not dry_run:
        from fedray.remote import sweep_in_cluster

        raise typer.Exit(sweep_in_cluster(loaded, address, force, max_concurrent))
    raise typer.Exit(sweep_here(loaded, str(file), address, force, max_concurrent, dry_run))


def sweep_here(loaded: "Sweep", file: str, address: str | None, force: bool, max_concurrent: int | None,
               dry_run: bool = False) -> int:
    """A sweep with this process as its driver; the exit code."""
    from fedray.plan import execute, plan

    try:
        planned = plan(loaded, force)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    known = [outcome.status for outcome in planned.known.values()]
    print(f"{loaded.name}: {len(planned.cells.cells)} cells, {known.count('finished')} finished, "
          f"{known.count('diverged')} diverged, {len(planned.to_run)} to run")
    if dry_run:
        from fedray.dryrun import show

        show(planned, address)
        return 0
    counts = execute(planned, max_concurrent, address)
    print(f"{loaded.name}: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    if counts["interrupted"]:
        print("interrupted: call the same command again to go on from the checkpoints", file=sys.stderr)
        return 130
    return 1 if counts["failed"] or counts["missing"] else 0


@app.command("list")
def list_(what: Annotated[str, typer.Argument(metavar="algorithms|models|datasets|partitions")]) -> None:
    """Names, options with defaults, papers; what algorithms cost, in multiples of the model (docs/algorithms.md)."""
    from fedray.algorithms import ALGORITHMS
    from fedray.cost import cost
    from fedray.data.partition import PARTITIONS
    from fedray.data.sources import DATASETS
    from fedray.errors import unknown
    from fedray.models.zoo import MODELS

    registries: dict[str, Any] = {"algorithms": ALGORITHMS, "models": MODELS, "datasets": DATASETS,
                                  "partitions": PARTITIONS}
    if what not in registries:
        raise unknown("list", what, registries)
    costs = {name: str(cost(kind())) for name, kind in ALGORITHMS.items()} if what == "algorithms" else {}
    table = Table("name", "options", "what", "paper", *["cost"] * bool(costs), box=None, pad_edge=False)
    kinds: dict[str, type[Component]] = registries[what]
    for name, kind in sorted(kinds.items()):
        table.add_row(name, *kind.row(), *([costs[name]] if costs else []))
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


@app.command()
def ui(port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
       host: Annotated[str, typer.Option(help="address to listen at; any other lets others in, unasked")] = "127.0.0.1",
       ) -> None:
    """MLflow's UI on this directory's store (or MLFLOW_TRACKING_URI), on 127.0.0.1 unless told otherwise."""
    from fedray.tracking import open_store, store_uri

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
    os.execve(sys.executable, [sys.executable, "-m", "mlflow", "ui", "--host", host, "--port", str(port)],  # noqa: S606
              os.environ | {"MLFLOW_BACKEND_STORE_URI": uri})


def entry(command: Callable[..., None] | typer.Typer) -> NoReturn:
    """Run a command line: a user's mistake is one line and exit code 2, numbers gone wrong are exit code 3.

    No secret of an address is printed or logged, in tracebacks of our own mistakes (exit code 1) neither.
    """
    sys.path.insert(0, os.getcwd())  # one's own `package.module:Class` is looked for here first, as by `python -m`
    logging.setLogRecordFactory(_discreet)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("fedray").setLevel(logging.INFO)
    if not isinstance(command, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        single.command()(command)
        command = single
    try:
        code = command(standalone_mode=False)
    except typer.Exit as exit_:
        code = exit_.exit_code
    except (UserError, UsageError) as error:
        message = str(error) if isinstance(error, UserError) else error.format_message()
        line = redacted(" ".join(message.split()))  # what a hostile file holds does not steer the terminal
        print(f"fedray: {''.join(c if c.isprintable() else repr(c)[1:-1] for c in line)}", file=sys.stderr)
        code = 2
    except Diverged as error:
        print(f"fedray: {error}", file=sys.stderr)
        code = 3
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception:
        print(redacted(traceback.format_exc()), end="", file=sys.stderr)
        code = 1
    sys.exit(code or 0)


def _discreet(*arguments: Any, **more: Any) -> logging.LogRecord:
    """A log record, of whatever package, that holds no secret of an address."""
    record = logging.LogRecord(*arguments, **more)
    record.msg, record.args = redacted(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = redacted("".join(traceback.format_exception(*record.exc_info)).rstrip())
    return record


app.add_typer(data_app, name="data")


def main() -> None:
    """`fedray`."""
    entry(app)


if __name__ == "__main__":
    main()
