"""`fedray sweep`: run a sweep, or show what it would run."""

import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedray.cli.run import Set, complete_file, parse_assignments
from fedray.common.entry import CELL, format_json
from fedray.common.errors import DataMissing, UserError, format_count, name_place

if TYPE_CHECKING:
    from fedray.sweep.plan import Options
    from fedray.sweep.sweep import Sweep

MOST = 100_000
"""Largest number of nodes, of a node's CPUs, and of trials at a time that is no mistake."""
LIMIT, SPARE = 24, 1.25
"""Hours after which slurm.sh is requeued, and the limit of a shorter job relative to its plan."""
CPUS = 16
"""CPUs of a node that slurm.sh asks for."""


@dataclass(frozen=True)
class SweepRequest:
    """Run a sweep. Called again, it resumes unfinished cells and skips finished ones."""

    file: Annotated[
        Path,
        typer.Argument(help="a sweep's YAML file, or a name of `fedray list sweeps`", autocompletion=complete_file),
    ]
    set_: Set = None
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CELL", help=f"only these cells, {CELL}; can be repeated")
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would run, and whether it fits")] = False
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="with --dry-run: hours on this machine's GPU, or on one core if it has none; needs no data",
        ),
    ] = False
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="with --dry-run: plan for a cluster of so many nodes; needs no data"),
    ] = None
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, max=MOST, help=f"with --nodes; default: {CPUS}, as slurm.sh asks for")
    ] = None
    gpus_per_node: Annotated[int | None, typer.Option(min=0, max=MOST, help="with --nodes; default: none")] = None
    seconds_per_round: Annotated[
        float | None, typer.Option(help="with --nodes: measured seconds of a round there, of the slowest method")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="run finished cells again; with --only, just those")] = False
    max_concurrent: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="trials at a time; default: as many as fit")
    ] = None
    address: Annotated[str | None, typer.Option(help="auto | HOST:PORT; else local")] = None
    smoke: Annotated[bool, typer.Option("--smoke", help="run the small version that the file defines")] = False
    as_json: Annotated[bool, typer.Option("--json", help="with --dry-run alone: the cells as JSON")] = False

    def execute(self) -> int:
        """Run the sweep, or print what was asked for; return the exit code. Raises UserError."""
        sweep, source = self._load()
        self._check()
        if self.only and sweep.tune is not None:
            from fedray.sweep.stages import ONLY_WHOLE

            raise UserError(ONLY_WHOLE)
        if self.estimate or self.nodes:
            self._forecast(sweep, source)
        elif self.as_json:
            self._list_cells(sweep, source)
        else:
            return self._run(sweep, source)
        return 0

    @property
    def _options(self) -> "Options":
        """What a call is asked for besides the sweep."""
        from fedray.sweep.plan import Options

        return Options(self.force, self.only or (), self.max_concurrent, self.address)

    def _load(self) -> "tuple[Sweep, str]":
        """Return the sweep with the changes of `--smoke` and `--set`, and what messages call it."""
        from fedray.sweep.document import load_document, locate_sweep

        changes = parse_assignments(self.set_)
        file = locate_sweep(self.file)
        document = load_document(file)  # a mistake in it is reported before PyTorch is imported
        if "algorithm" in document and not {"name", "base"} & document.keys():
            raise UserError(
                f"{file}: is the configuration of one run, which `fedray run` takes; a sweep has name and base"
            )

        from fedray.sweep.sweep import Sweep

        sweep = Sweep.parse(document, self.smoke, file)
        source = f"{file}{' with --smoke' if self.smoke else ''}{' with --set' if changes else ''}"
        return (sweep.with_overrides(changes) if changes else sweep), source

    def _check(self) -> None:
        """Raise UserError for options that do not go together, or describe a part of a cluster."""
        alone = (("estimate", self.estimate), ("nodes", self.nodes), ("json", self.as_json))
        if option := next((option for option, given in alone if given and not self.dry_run), ""):
            raise UserError(f"--{option}: goes with --dry-run")
        of_node: dict[str, float | None] = {
            "cpus-per-node": self.cpus_per_node,
            "gpus-per-node": self.gpus_per_node,
            "seconds-per-round": self.seconds_per_round,
        }
        if option := next((option for option, given in of_node.items() if given is not None and not self.nodes), ""):
            raise UserError(f"--{option}: goes with --nodes, the number of such machines")
        if self.seconds_per_round is not None and not 0 < self.seconds_per_round < math.inf:
            raise UserError(f"--seconds-per-round: found {self.seconds_per_round}; a number above 0 is required")
        if not self.estimate and not self.nodes:
            return
        if self.as_json:
            raise UserError("--json: --estimate and --nodes print no JSON; --dry-run --json alone lists the cells")
        for option, value in (("force", self.force), ("address", self.address)):
            if value:
                raise UserError(f"--{option}: --estimate and --nodes look nothing up; leave it out")

    def _forecast(self, sweep: "Sweep", source: str) -> None:
        """Print hours, and how many cells run at a time on the nodes that were described, or on this machine."""
        from fedray.sweep.dry_run import count_room, list_local_nodes, print_few_seeds, print_forecast
        from fedray.sweep.estimate import print_estimate
        from fedray.sweep.plan import list_distinct
        from fedray.sweep.stages import make_tune_stage, preview_final_stage

        cpus, gpus, used, here = self.cpus_per_node or CPUS, self.gpus_per_node, False, list_local_nodes()
        walls = list[float | None]()
        room = [{"CPU": float(cpus), "GPU": float(gpus or 0)}] * (self.nodes or 0)
        changes = [part for one in self.set_ or () for part in ("--set", one)]
        of_file = any(key.partition(".")[0] in type(sweep).model_fields for key in parse_assignments(self.set_))
        others = self.smoke or of_file or (sweep.tune is not None and sweep.tune.blocks)  # than `run --cell` numbers
        file = "" if others else shlex.join([str(self.file), *changes])
        for one in [sweep] if sweep.tune is None else [make_tune_stage(sweep), preview_final_stage(sweep)]:
            with name_place(source):
                numbered = {n: run for n, (run, _) in list_distinct(one, self.only or ()).items()}
            runs = [*numbered.values()]
            used = used or any(run.runtime.gpus_per_actor for run in runs)
            print(f"{one.name}: {format_count(len(runs), 'cell')}")
            print_few_seeds(one.name, runs)
            seconds, start = list[float | None]([None] * len(runs)), None
            if self.estimate:
                at_a_time = max(count_room(run.runtime, here, self.max_concurrent) for run in runs)
                seconds, start = print_estimate(one.name, runs, max(at_a_time, 1))
            walls.append(
                print_forecast(
                    file, numbered, room or here, seconds, self.seconds_per_round, start, self.max_concurrent
                )
            )
            file = ""  # `run --cell` numbers the first stage
        if self.nodes and math.inf in walls:
            raise UserError(f"{source}: not all cells fit on these nodes, so that the sweep would not start")
        if self.nodes:
            asked = f"--nodes={self.nodes} --cpus-per-task={cpus}" + (
                f" --gpus-per-node={gpus}" if gpus and used else ""
            )
            hours = math.ceil(SPARE * math.fsum(filter(None, walls)) / 3600)
            known = None not in walls
            is_short = known and hours < LIMIT
            asked += f" --time={hours}:00:00" if is_short else ""
            same = ["--smoke"] * self.smoke + changes
            same += [part for one in self.only or () for part in ("--only", one)]
            same += ["--max-concurrent", str(self.max_concurrent)] if self.max_concurrent else []
            if not known:
                print("no --time below, since the hours are not known: --seconds-per-round gives them")
            elif not is_short:
                print(
                    f"no --time below, since {hours} h, with a quarter to spare, do not fit in slurm.sh's {LIMIT}; "
                    f"where your site allows more, add --time={hours}:00:00 before slurm.sh"
                )
            print(f"after {'its --time' if is_short else f'{LIMIT} hours'} the job is requeued and goes on")
            print("under Slurm, with data, a folder and a store that all nodes reach:")
            print(
                "  export FEDRAY_DATA=/shared/data FEDRAY_STORAGE=/shared/me/fedray MLFLOW_TRACKING_URI=http://HOST:5000"
            )
            print("  fedray list clusters slurm.sh > slurm.sh")
            print(f"  sbatch {asked} slurm.sh {shlex.join([str(self.file), *same])}")

    def _list_cells(self, sweep: "Sweep", source: str) -> None:
        """Print the cells as JSON."""
        from fedray.sweep.plan import make_plan
        from fedray.sweep.stages import make_tune_stage
        from fedray.sweep.storage import correct_statuses

        blocks = [one if one.tune is None else make_tune_stage(one) for one in sweep.list_blocks()]
        with name_place(source):
            plans = [make_plan(one, self._options) for one in blocks]
        left = {cell.hash for plan in plans for cell in plan.to_run}
        sheets = [correct_statuses(plan.sheet) for plan in plans]
        cells = [
            {"hash": cell.hash, "label": cell.label, "to_run": cell.hash in left}
            | ({"status": sheet.get_status(cell.hash)} if cell.hash in sheet.records else {})
            for sheet in sheets
            for cell in sheet.cells.values()
        ]
        name = sweep.name if len(blocks) > 1 else blocks[0].name
        print(format_json({"name": name, "cells": cells, "unlisted": sum(plan.unlisted for plan in plans)}))

    def _run(self, sweep: "Sweep", source: str) -> int:
        """Run the sweep, or with `--dry-run` print its cells and whether they fit; return the exit code."""
        from fedray.sweep.stages import make_tune_stage, run_file

        try:
            return run_file(sweep, source, self._options, self.dry_run)
        except DataMissing as error:
            if not self.dry_run:
                raise
            from fedray.sweep.dry_run import print_cells

            for one in sweep.list_blocks():
                print_cells(one if one.tune is None else make_tune_stage(one), self.only or ())
            print("which cells have run, and whether they can run, is not known without the data:", file=sys.stderr)
            print(f"fedray: {error}", file=sys.stderr)
            return 0
