"""`fedray run`: one run, resumed where it was interrupted."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedray.common.entry import CELL, Overwrite, format_json
from fedray.common.errors import UserError, escape, truncate_repr
from fedray.common.yaml_files import is_yaml

if TYPE_CHECKING:
    from fedray.common.output import OutputFile
    from fedray.config import RunConfig
    from fedray.engine.result import Result


def refuse_missing_value(given: list[str] | None) -> list[str] | None:
    """Refuse `--set KEY VALUE` before VALUE is an argument too many: a callback of `--set`."""
    if lacking := next((one for one in given or () if "=" not in one), None):
        meant = lacking[:80].replace(":", "=", 1) if ":" in lacking else f"{lacking[:80]}=VALUE"
        raise UserError(f"--set: found {truncate_repr(lacking)}; KEY=VALUE is required, without a space: --set {meant}")
    return given


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", callback=refuse_missing_value, help="change a dotted key; repeatable"),
]


def complete_file(incomplete: str) -> list[str]:
    """Return the YAML files of this folder and the shipped sweeps that begin so."""
    from fedray.sweep.document import list_sweeps

    names = [str(path) for path in sorted(Path().glob(f"{incomplete}*")) if is_yaml(path)]
    return names + [name for name in list_sweeps() if name.startswith(incomplete)]


@dataclass(frozen=True)
class RunRequest:
    """Run one cell. Called again, it resumes from the newest checkpoint; a finished run is only shown."""

    file: Annotated[
        Path,
        typer.Argument(
            help="YAML file of a run or of a sweep (its first cell), or a shipped sweep's name",
            autocompletion=complete_file,
        ),
    ]
    cell: Annotated[str | None, typer.Option(metavar="CELL", help=f"the cell of a sweep to run: {CELL}")] = None
    set_: Set = None
    backend: Annotated[str | None, typer.Option(help="inline | ray")] = None
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False
    track: Annotated[bool, typer.Option(help="log to MLflow and keep checkpoints; otherwise nothing is written")] = True
    force: Annotated[bool, typer.Option("--force", help="start again, ignoring existing checkpoints")] = False
    save: Annotated[Path | None, typer.Option(help="write the trained model to this file, as safetensors")] = None
    save_personal: Annotated[
        Path | None, typer.Option(help="write each client's personal model to this folder, as safetensors")
    ] = None
    logged: Annotated[bool, typer.Option("--log-model", help="also log the trained model to MLflow")] = False
    profiled: Annotated[bool, typer.Option("--profile", help="show where each round's time went; starts again")] = False
    archive: Annotated[
        Path | None,
        typer.Option(help="with --cell: log into this zip, which `fedray import` adds to a store, instead of a store"),
    ] = None
    overwrite: Overwrite = False

    def execute(self) -> int:
        """Run the cell, write and log what was asked for, and print it. Raises UserError."""
        if self.logged and not self.track:
            raise UserError("--log-model: --no-track writes nothing to MLflow; leave one out")
        if self.archive is not None and (self.cell is None or not self.track or self.logged):
            raise UserError("--archive: goes with --cell, and without --no-track and --log-model")
        if self.track and self.archive is None:
            refuse_shared_file()
        from fedray.sweep.document import load_document, locate_sweep

        changes, file = parse_assignments(self.set_), locate_sweep(self.file)
        document = load_document(file)  # a mistake in it is reported before PyTorch is imported

        from fedray.engine.server.profile import Profile
        from fedray.sweep.single import hold_cell, load_cell, run_problem

        cell, problem, listed = load_cell(document, file, self.cell, changes, self.backend)
        sweep = "" if listed is None else listed.name
        model, archive = self._check_outputs(cell.run, file, sweep)
        if listed and self.track and archive is None:
            from fedray.common.location import refuse_unwritable_store
            from fedray.tracking.store import count_unlisted, describe_unlisted

            refuse_unwritable_store()  # before it is read: it may be another program's
            if line := describe_unlisted(sweep, count_unlisted(listed)):
                print(escape(line), file=sys.stderr)
        profile = Profile() if self.profiled else None
        if self.track:
            from fedray.sweep.storage import refuse_unwritable_storage
            from fedray.tracking.archive import log_into_archive  # MLflow, after all refusals

            refuse_unwritable_storage()
            with contextlib.nullcontext() if archive is None else log_into_archive(sweep, archive.path):
                held = hold_cell(cell.hash, self.force or self.profiled, listed, archive is not None)
                result = run_problem(problem, cell.hash, cell.label, held, profile=profile, sweep=sweep)
        else:
            result = run_problem(problem, profile=profile)
        lines = list(self._write(result, model))
        if archive is not None:
            result = replace(result, run_id="")
            lines.append(f"archive {self.archive}: `fedray import {self.archive}` adds it to a store")
        if self.cell is not None and listed is None and self.track:
            lines.append(escape(f"{document['name']} has no such cell: its status and tables leave this run out"))
        if self.as_json:
            summary = result.summary() | ({"run_id": result.run_id} if result.run_id else {})
            print(format_json(summary if profile is None else summary | {"profile": profile.average_seconds()}))
            return 0
        _show(result, cell.label)
        for line in lines:
            print(line)
        if profile is not None:
            print(profile.format_table())
        return 0

    def _check_outputs(self, run: "RunConfig", file: Path, sweep: str) -> "tuple[OutputFile | None, OutputFile | None]":
        """Return the files of the model and of the archive. Raises UserError for what cannot be written or logged."""
        from fedray.common.output import OutputFile
        from fedray.components.identity import list_paths
        from fedray.engine.result import refuse_without_model, refuse_without_personal

        if self.archive is not None and not sweep:
            raise UserError("--archive: --set makes a cell that is not in the sweep; leave one out")
        if self.save is not None or self.logged:
            refuse_without_model(run.algorithm)
        inputs: list[str | Path] = [file, *list_paths(run)]

        def check(option: str, path: Path | None, ending: str) -> OutputFile | None:
            return None if path is None else OutputFile(option, path, (ending,), self.overwrite, inputs)

        model = check("--save", self.save, ".safetensors")
        if self.save_personal is not None:
            refuse_without_personal(run.algorithm)
            for one in (self.save_personal / "client-0.safetensors", *self.save_personal.glob("client-*.safetensors")):
                check("--save-personal", one, ".safetensors")
        return model, check("--archive", self.archive, ".zip")

    def _write(self, result: "Result", model: "OutputFile | None") -> Iterator[str]:
        """Write models and log the trained one; yield a line for each."""
        if model is not None:
            with tempfile.TemporaryDirectory() as folder:
                model.write(result.save(Path(folder, "model.safetensors")).read_bytes())
            yield f"model {self.save}"
        if self.save_personal is not None:
            files = result.save_personal(self.save_personal, overwrite=self.overwrite)
            yield f"{len(files)} personal models in {self.save_personal}"
        if self.logged:
            from fedray.api.results import log_model

            yield f"model {log_model(result.run_id)} in MLflow"


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

    changes = {}
    for assignment in given or []:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set: found {truncate_repr(assignment)}; KEY=VALUE is required")
        changes[key] = parse_yaml(value, f"--set {key}")
    return changes


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
