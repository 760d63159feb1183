"""`fedray run`: one run, resumed where it was interrupted."""

import contextlib
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedray.common.entry import CELL, Overwrite, format_json
from fedray.common.errors import UserError, escape, truncate_repr

if TYPE_CHECKING:
    from fedray.engine.result import Result


def refuse_missing_value(given: list[str] | None) -> list[str] | None:
    """Refuse `--set KEY VALUE` before VALUE is an argument too many: a callback of `--set`."""
    if lacking := next((one for one in given or () if "=" not in one), None):
        raise UserError(
            f"--set: found {truncate_repr(lacking)}; KEY=VALUE is required, without a space: --set {lacking[:80]}=VALUE"
        )
    return given


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", callback=refuse_missing_value, help="change a dotted key; repeatable"),
]


def complete_file(incomplete: str) -> list[str]:
    """Return the YAML files of this folder and the shipped sweeps that begin so."""
    from fedray.sweep.file.shipped import list_sweeps

    names = [str(path) for path in sorted(Path().glob(f"{incomplete}*")) if path.suffix in (".yaml", ".yml")]
    return names + [name for name in list_sweeps() if name.startswith(incomplete)]


def run(
    file: Annotated[
        Path,
        typer.Argument(
            help="YAML file of a run or of a sweep (its first cell), or a shipped sweep's name",
            autocompletion=complete_file,
        ),
    ],
    cell: Annotated[
        str | None,
        typer.Option(metavar="CELL", help=f"the cell of a sweep to run: {CELL}"),
    ] = None,
    set_: Set = None,
    backend: Annotated[str | None, typer.Option(help="inline | ray")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
    track: Annotated[
        bool, typer.Option(help="log to MLflow and keep checkpoints; otherwise nothing is written")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="start again, ignoring existing checkpoints")] = False,
    save: Annotated[Path | None, typer.Option(help="write the trained model to this file, as safetensors")] = None,
    save_personal: Annotated[
        Path | None, typer.Option(help="write each client's personal model to this folder, as safetensors")
    ] = None,
    logged: Annotated[bool, typer.Option("--log-model", help="also log the trained model to MLflow")] = False,
    profiled: Annotated[
        bool, typer.Option("--profile", help="show where each round's time went; starts again")
    ] = False,
    archive: Annotated[
        Path | None,
        typer.Option(help="with --cell: log into this zip, which `fedray import` adds to a store, instead of a store"),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Run one cell. Called again, it resumes from the newest checkpoint; a finished run is only shown."""
    from fedray.sweep.file.document import load_document
    from fedray.sweep.file.shipped import locate_sweep

    if logged and not track:
        raise UserError("--log-model: --no-track writes nothing to MLflow; leave one out")
    if archive is not None and (cell is None or not track or logged):
        raise UserError("--archive: goes with --cell, and without --no-track and --log-model")
    if track and archive is None:
        refuse_shared_file()
    file = locate_sweep(file)
    # Mistakes here are reported before PyTorch is imported.
    document, changes = load_document(file), parse_assignments(set_)

    from fedray.api import run_problem
    from fedray.cells.spec import flatten
    from fedray.common.output import OutputFile
    from fedray.common.yaml_files import format_flow
    from fedray.engine.result import refuse_without_model, refuse_without_personal
    from fedray.engine.server.profile import Profile
    from fedray.sweep.driver.single import hold_cell, load_cell
    from fedray.tracking.archive import log_into_archive
    from fedray.tracking.mirrors.mirrors import refuse_missing_extras

    chosen, problem, listed = load_cell(document, file, cell, changes, backend)
    sweep = "" if listed is None else listed.sweep.name
    if archive is not None and not sweep:
        raise UserError("--archive: --set makes a cell that is not in the sweep; leave one out")
    if save is not None or logged:
        refuse_without_model(chosen.run.algorithm)
    inputs: list[str | Path] = [file, *flatten(chosen.run.resolve()).values()]
    model_file = None if save is None else OutputFile("--save", save, (".safetensors",), overwrite, inputs)
    if save_personal is not None:
        refuse_without_personal(chosen.run.algorithm)
        for one in (save_personal / "client-0.safetensors", *save_personal.glob("client-*.safetensors")):
            OutputFile("--save-personal", one, (".safetensors",), overwrite, inputs)
    zipped = None if archive is None else OutputFile("--archive", archive, (".zip",), overwrite, inputs)
    if track:
        refuse_missing_extras(chosen.run.runtime.mirror)
    profile = Profile() if profiled else None
    if listed and track and archive is None:
        from fedray.common.location import refuse_unwritable_store
        from fedray.sweep.plan.plan import describe_unlisted
        from fedray.tracking.store import count_unlisted

        refuse_unwritable_store()  # before it is read: it may be another program's
        if count := count_unlisted(sweep, listed.cells):
            print(escape(describe_unlisted(sweep, count)), file=sys.stderr)
    if track:
        with contextlib.nullcontext() if zipped is None else log_into_archive(sweep, zipped.path):
            held = hold_cell(chosen.hash, force or profiled, listed)
            result = run_problem(problem, chosen.hash, chosen.label, held, profile=profile, sweep=sweep)
    else:
        result = run_problem(problem, profile=profile)
    if archive is not None:
        result = replace(result, run_id="")
    if model_file is not None:
        with tempfile.TemporaryDirectory() as folder:
            model_file.write(result.save(Path(folder, "model.safetensors")).read_bytes())
    if save_personal is not None:
        files = result.save_personal(save_personal, overwrite=overwrite)
    model = ""
    if logged:
        from fedray.analysis.data.frames import log_model

        model = log_model(result.run_id)
    if as_json:
        summary = result.summary() | ({"run_id": result.run_id} if result.run_id else {})
        print(format_json(summary if profile is None else summary | {"profile": profile.average_seconds()}))
        return
    _show(result, chosen.label)
    if save is not None:
        print(f"model {save}")
    if save_personal is not None:
        print(f"{len(files)} personal models in {save_personal}")
    if model:
        print(f"model {model} in MLflow")
    if archive is not None:
        print(f"archive {archive}: `fedray import {archive}` adds it to a store")
    if profile is not None:
        print(profile.format_table())
    if cell is not None and listed is None and track:
        said = f"{document['name']} has no such cell: its status and tables leave this run out"
        if "tune" not in document:
            keys = ", ".join(f"`{key}: [..., {format_flow([value])[1:-1]}]`" for key, value in changes.items())
            said += f"; {keys} in the file's grid picks it up"
        print(escape(said))


def refuse_shared_file() -> None:
    """Raise UserError in a Slurm array whose tasks would all write to one SQLite file, maybe from several machines."""
    from fedray.common.location import find_local_file, store_uri

    if "SLURM_ARRAY_TASK_ID" in os.environ and (file := find_local_file(store_uri())) is not None:
        raise UserError(
            f"MLFLOW_TRACKING_URI: the tasks of a Slurm array cannot share the SQLite file {file}; name a server, or "
            "let each task write an archive of its own: --archive FILE-$SLURM_ARRAY_TASK_ID.zip"
        )


def parse_assignments(given: list[str] | None) -> dict[str, Any]:
    """Return dotted key -> value of every `--set`. Raises UserError."""
    from fedray.common.yaml_files import parse_yaml

    found = {}
    for assignment in given or []:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set: found {truncate_repr(assignment)}; KEY=VALUE is required")
        found[key] = parse_yaml(value, f"--set {key}")
    return found


def _show(result: "Result", name: str) -> None:
    """Print the last evaluated rounds as a table, then the run's identifiers."""
    from rich.console import Console
    from rich.table import Table

    from fedray.cells.metric import describe_accuracy

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
    console.print(f"{name}: test accuracy {describe_accuracy(result.history)}", soft_wrap=True)
    console.print(f"{summary['seconds_per_round']:.3g} s per round")
    console.print(f"theta_sha256 {summary['theta_sha256']}", soft_wrap=True)
    if result.run_id:
        from fedray.tracking.view import make_address

        console.print(f"run {result.run_id} in MLflow: {make_address(result.run_id)}", soft_wrap=True)
