"""`fedray run`: one run, resumed where it was interrupted."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedray.common.errors import UserError, truncated_repr

if TYPE_CHECKING:
    from fedray.engine.result import Result

Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a dotted key; repeatable")]


def run(
    file: Annotated[Path, typer.Argument(help="a run's YAML file, or a sweep's (its first cell), or a shipped name")],
    cell: Annotated[
        str | None, typer.Option(metavar="N|HASH", help="of a sweep: this cell, as --dry-run shows")
    ] = None,
    set_: Set = None,
    backend: Annotated[str | None, typer.Option(help="inline | ray")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
    track: Annotated[bool, typer.Option(help="log to MLflow and keep checkpoints; else nothing is written")] = True,
    force: Annotated[bool, typer.Option("--force", help="start again, whatever checkpoints there are")] = False,
    save: Annotated[Path | None, typer.Option(help="write the trained model there, as safetensors")] = None,
    logged: Annotated[bool, typer.Option("--log-model", help="log the trained model to MLflow, too")] = False,
    profiled: Annotated[bool, typer.Option("--profile", help="where each round's time went; starts again")] = False,
) -> None:
    """One run. Called again it resumes from its newest checkpoint; a finished run is shown as it was."""
    from fedray.common.yaml_files import load_yaml
    from fedray.sweep.file.shipped import located

    if logged and not track:
        raise UserError("--log-model: --no-track writes nothing to MLflow; leave one out")
    file = located(file)
    point, changes = load_yaml(file), assignments(set_)  # a slip there is told before PyTorch is imported

    from fedray.api import simulate
    from fedray.config import RunConfig
    from fedray.engine.profile import Profile
    from fedray.engine.result import refuse_without_model
    from fedray.sweep.cells import label

    if backend is not None:
        changes["runtime.backend"] = backend
    point = _changed(_cell(file, point, cell), changes)
    try:
        config = RunConfig.parse(point)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if save is not None or logged:
        refuse_without_model(config.algorithm)
    if save is not None:
        _refuse_unwritable(save)
    data = config.data.load()
    profile = Profile() if profiled else None
    name = label(point, config)
    kept = _checkpoints(config.cell(data.digest), force or profiled) if track else contextlib.nullcontext()
    with kept as checkpoints:
        result = simulate(
            config, track=name if track else None, checkpoints=checkpoints, profile=profile, data=data, progress=None
        )
    if save is not None:
        result.save(save)
    model = _logged_model(result) if logged else ""
    if as_json:
        summary = result.summary() | ({"run_id": result.run_id} if result.run_id else {})
        print(json.dumps(summary if profile is None else summary | {"profile": profile.metrics()}))
        return
    _show(result, name)
    if save is not None:
        print(f"model {save}")
    if model:
        print(f"model {model} in MLflow")
    if profile is not None:
        print(profile.table())


def _refuse_unwritable(path: Path) -> None:
    """Refuse a file that could not be written after the training. Raises UserError."""
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        raise UserError(f"--save: {path} cannot be written: {error.strerror}") from None


def _logged_model(result: "Result") -> str:
    from analysis.reading.frames import log_model

    return log_model(result.run_id)


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


def _cell(file: Path, point: dict[str, Any], cell: str | None) -> dict[str, Any]:
    """The configuration of a run's file, or of a cell of a sweep's."""
    from fedray.sweep.cells import cell_point
    from fedray.sweep.grid import Sweep

    if "base" in point:
        return cell_point(Sweep.load(file), cell)
    if cell is not None:
        raise UserError(f"--cell: {file} is one run, not a sweep")
    return point


def _changed(point: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    from fedray.sweep.grid import changed

    for key, value in changes.items():
        point = changed(point, key, value)
    return point


@contextlib.contextmanager
def _checkpoints(cell: str, again: bool) -> Iterator[Path]:
    """The cell's directory, the one that a sweep would use, for the duration of a block; nobody else runs it meanwhile.

    Args:
        cell: its hash.
        again: empty the directory first; earlier runs no longer count.

    Raises:
        UserError: another process runs the cell, or the storage cannot be written.
    """
    from fedray.sweep.storage import Claims, claims_file, refuse_unwritable_storage, storage
    from fedray.tracking.tracker import Tracker

    refuse_unwritable_storage()
    directory = storage() / "cells" / cell
    with Claims(claims_file()) as claims:
        if not claims.take([cell]):
            raise UserError(f"run: another process is running this cell, {cell}; wait for it, or give --no-track")
        if again and directory.exists():
            Tracker().supersede([cell])
            shutil.rmtree(directory)
        yield directory


def _show(result: "Result", name: str) -> None:
    """The last evaluated rounds as a table, then what identifies the run."""
    from rich.console import Console
    from rich.table import Table

    summary = result.summary()
    personal = {"PA %": "personal_accuracy", "GA %": "generic_accuracy"} if "personal_accuracy" in summary else {}
    table = Table("round", "test accuracy %", "test loss", "train loss", *personal, box=None)
    for row in result.history[-10:]:
        table.add_row(
            f"{row['round']:.0f}",
            f"{row['test_accuracy']:.2f}",
            f"{row['test_loss']:.4g}",
            f"{row['train_loss']:.4g}",
            *(f"{row[column]:.2f}" if column in row else "" for column in personal.values()),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{name}: {summary['seconds_per_round']:.3g} s per round")
    console.print(f"theta_sha256 {summary['theta_sha256']}", soft_wrap=True)
    if result.run_id:
        from fedray.tracking.store import address

        console.print(f"run {result.run_id} in MLflow: {address(result.run_id)}", soft_wrap=True)
