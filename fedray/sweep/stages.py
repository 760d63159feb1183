"""The two sweeps of a file with `tune` and `final`; the best draws of the first make the second."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from fedray.cells.sheet import Sheet
from fedray.cells.status import Status
from fedray.common.errors import UserError, format_duration, name_place
from fedray.common.location import refuse_unwritable_store
from fedray.components.base import format_value
from fedray.components.sources import hold_sources
from fedray.config import RunConfig
from fedray.sweep.draws import count_training_gradients, make_draws
from fedray.sweep.plan import Options, Plan, list_distinct, refuse_unlogged
from fedray.sweep.points import apply_draw
from fedray.sweep.run import drive, plan_and_print
from fedray.sweep.space import Space, format_range, is_at_edge
from fedray.sweep.storage import refuse_unwritable_storage
from fedray.sweep.sweep import Sweep

NOT_SHARED = {"name", "stop", "tune", "final", "smoke"}
"""Keys of the file that the tune stage does not adopt."""

ONLY_WHOLE = "--only: the final stage follows from the whole tune stage; run the file whole"
"""The error for cells chosen from a file with both stages."""


@dataclass(frozen=True)
class Study:
    """The draws of one method and setting.

    Attributes:
        config: the setting, without the seed.
        space: the space that is drawn from.
        draws: key -> value of each.
        cells: the hashes of each draw's cells, one per seed.
    """

    config: dict[str, Any]
    space: Space
    draws: list[dict[str, Any]]
    cells: list[list[str]]

    def find_best(self, known: Mapping[str, float | None], lower: bool) -> tuple[int, float, int, list[int]] | None:
        """Return index and score of the best draw, the first of equal ones, how many have finished, and all equal ones.

        known: hash -> value of `select`, for cells that have an outcome; None if that is not a finished run.
        A draw has finished if every seed has; its score is the mean of `select` over them.
        """
        values = [[value for cell in cells if (value := known.get(cell)) is not None] for cells in self.cells]
        scores = {k: sum(of) / len(of) for k, of in enumerate(values) if len(of) == len(self.cells[k])}
        if not scores:
            return None
        best = (min if lower else max)(scores, key=scores.__getitem__)
        tied = {tuple(self.cells[k]): k for k, score in scores.items() if score == scores[best]}  # equal draws once
        return best, scores[best], len(scores), [*tied.values()]


def make_studies(sweep: Sweep, hashes: Iterable[str]) -> list[Study]:
    """Return the studies of a search, in its order, given the hash of each of `iter_points`."""
    studies, left = dict[str, Study](), iter(hashes)
    for config, space in sweep.points:
        setting = {name: value for name, value in config.items() if name != "seed"}
        key = json.dumps([setting, space], sort_keys=True, default=str)
        draws = make_draws(sweep, space)
        study = studies.setdefault(key, Study(setting, space, draws, [[] for _ in draws]))
        for cells in study.cells:
            cells.append(next(left))
    return list(studies.values())


@dataclass(frozen=True)
class Choice:
    """The best draw of a method and setting.

    Attributes:
        study: its draws; its setting holds nothing out.
        values: drawn key -> chosen value.
        score: mean over the seeds of the metric that selects.
        finished: number of draws that have finished with every seed.
        tied: the different draws with this score.
    """

    study: Study
    values: dict[str, Any]
    score: float
    finished: int
    tied: list[dict[str, Any]]

    @property
    def config(self) -> dict[str, Any]:
        """The setting with the chosen values."""
        return apply_draw(self.study.config, self.values)


def make_tune_stage(sweep: Sweep) -> Sweep:
    """Return the tune stage as a sweep of its own, `NAME/tune`."""
    assert sweep.tune is not None  # noqa: S101 (for the type checker)
    held_out = {} if sweep.metric.is_on_test_set else {"data.validation": [sweep.tune.held_out]}
    given = {key: getattr(sweep, key) for key in Sweep.model_fields.keys() - NOT_SHARED}
    grid = sweep.grid | held_out | {"seed": list(sweep.tune.seeds)}
    return Sweep.parse(given | {"name": f"{sweep.name}/tune", "grid": grid})


def make_final_stage(sweep: Sweep, configs: Sequence[Mapping[str, Any]]) -> Sweep:
    """Return the final stage as a sweep of its own, with the file's name."""
    assert sweep.final is not None  # noqa: S101 (for the type checker)
    held_out = {"data.validation": [sweep.tune.held_out]} if sweep.tune and sweep.final.train_on == "training" else {}
    given = {key: getattr(sweep, key) for key in ("name", "description", "names", "base")}
    distinct = {repr(config): dict(config) for config in configs}.values()  # spaces that overlap can agree
    cases, grid = {"chosen": [*distinct]}, held_out | {"seed": list(sweep.final.seeds)}
    return Sweep.parse(given | {"cases": cases, "grid": grid})


def preview_final_stage(sweep: Sweep) -> Sweep:
    """Return the final stage as far as it is known before tuning, with the first draw in place of the chosen one."""
    return make_final_stage(sweep, [apply_draw(one.config, one.draws[0]) for one in make_studies(sweep, repeat(""))])


def choose(plan: Plan) -> list[Choice]:
    """Return the best draw of each method and setting of a tune stage whose cells all have an outcome.

    A method and setting without a draw that has finished with every seed is left out, with a printed line.
    """
    known = plan.get_values()
    choices, lost = list[Choice](), list[str]()
    for study in make_studies(plan.sweep, (hash for _, hash in plan.points)):
        best = study.find_best(known, plan.sweep.metric.is_smaller_better)
        if best is None:
            advice = "; leave the scheduler out, or raise scheduler.grace" if plan.sweep.scheduler else ""
            label = plan.sheet.cells[study.cells[0][0]].label
            lost.append(f"{plan.sweep.name}: no draw of {label} has finished with every seed{advice}")
            continue
        index, score, finished, tied = best
        if isinstance(data := study.config["data"], dict):
            trained = {key: value for key, value in data.items() if key != "validation"}
            study = replace(study, config=study.config | {"data": trained})
        choices.append(Choice(study, study.draws[index], score, finished, [study.draws[k] for k in tied]))
    if not choices:
        raise UserError(lost[0])
    for line in lost:
        print(f"{line}; the final stage leaves it out", flush=True)
    return choices


def describe_choices(sweep: Sweep, choices: Sequence[Choice], plan: Plan) -> dict[str, dict[str, Any]]:
    """Return hash -> how a cell of the planned final stage was chosen, for its run in MLflow and its tables.

    `gradients` (of a batch, in the whole tune stage) is None if the size of the data is not known.
    """
    assert sweep.tune is not None  # noqa: S101 (for the type checker)
    assert sweep.final is not None  # noqa: S101 (for the type checker)
    tuned = dict[str, dict[str, Any]]()
    common = {
        "stage": f"{sweep.name}/tune",
        "select": sweep.select,
        "held_out": None if sweep.metric.is_on_test_set else sweep.tune.held_out,
        "train_on": sweep.final.train_on,
        "seeds": list(sweep.tune.seeds),
        "searcher": sweep.searcher.name,
        "scheduler": sweep.scheduler.rule if sweep.scheduler else "",
    }
    hashes = iter(hash for _, hash in plan.points)  # distinct choices x seeds
    cells = {repr(case): [next(hashes) for _ in sweep.final.seeds] for case in plan.sweep.cases["chosen"]}
    for choice in choices:
        study = choice.study
        held = {"data.validation": common["held_out"]}
        drawn = dict(zip(map(tuple, study.cells), study.draws, strict=True))  # equal ones once
        runs = [RunConfig.parse(apply_draw(study.config, held | values)) for values in drawn.values()]
        gradients = [count_training_gradients(run) for run in runs]
        tried = {key: [values[key] for values in study.draws] for key in study.space}
        at_edge = [key for key in choice.values if is_at_edge(choice.values[key], study.space[key], tried[key])]
        chosen = common | {
            "values": choice.values,
            "score": choice.score,
            "draws": len(study.draws),
            "finished": choice.finished,
            "tied": len(choice.tied),
            "rounds": len(sweep.tune.seeds) * sum(run.training.rounds for run in runs),
            "gradients": None if None in gradients else len(sweep.tune.seeds) * sum(filter(None, gradients)),
            "ranges": {key: format_range(space, tried[key]) for key, space in study.space.items()},
            "edges": [key for key in at_edge if all(draw[key] == choice.values[key] for draw in choice.tied)],
        }
        tuned |= dict.fromkeys(cells[repr(choice.config)], chosen)
    return tuned


@hold_sources()
def run_file(sweep: Sweep, file: str, options: Options = Options(), dry_run: bool = False) -> int:
    """Run a sweep, or both stages of one that tunes, and print what happens: `fedray sweep`; return the exit code."""
    if not dry_run:
        refuse_unwritable_store()
        refuse_unwritable_storage()
    if sweep.tune is not None:
        code = run_stages(sweep, file, options, dry_run)
        has_results = code == 0 and not dry_run
    else:
        plan = plan_and_print(sweep, file, options)
        if dry_run:
            _print_plan(plan)
            return 0
        code = drive(plan)
        has_results = plan.sheet.counts[Status.FINISHED] > 0 and code != 130
    if has_results:
        print(f"`fedray tables {sweep.name}` shows the results")
    return code


def run_stages(sweep: Sweep, file: str, options: Options = Options(), dry_run: bool = False) -> int:
    """Tune, then test, resuming each; with `dry_run` only print what is left of either.

    Return the exit code, as in `run.drive`: that of the tune stage if some of its cells have no outcome; with
    `tune.blocks`, that of the first block whose code is not 0, which is the last to run.
    """
    if options.only:
        raise UserError(ONLY_WHOLE)
    blocks = sweep.list_blocks()
    if len(blocks) == 1:
        return _run_block(blocks[0], file, options, dry_run)[0]
    each = len(list_distinct(make_tune_stage(blocks[0]))) + len(list_distinct(preview_final_stage(blocks[0])))
    total, trained, spent = each * len(blocks), 0, 0.0
    print(f"{sweep.name}: {total} cells in {len(blocks)} blocks", flush=True)
    for place, one in enumerate(blocks, 1):
        began = time.monotonic()
        code, count = _run_block(one, file, options, dry_run)
        if code:
            return code
        trained, spent = trained + count, spent + (time.monotonic() - began) * (count > 0)
        if trained and place < len(blocks) and not dry_run:
            left = total - place * each
            print(
                f"{sweep.name}: {left} of {total} cells to go, about {format_duration(left * spent / trained)}",
                flush=True,
            )
    return 0


def _run_block(sweep: Sweep, file: str, options: Options, dry_run: bool) -> tuple[int, int]:
    """Tune, then test, as `run_stages`; return the exit code and the number of cells that were trained."""
    text = sweep.to_yaml()
    first = plan_and_print(make_tune_stage(sweep), file, options, text)
    done = len(first.sheet.cells) - len(first.to_run)
    with name_place(file):
        for cell in first.sheet.cells.values():  # before hours are spent on cells that will not log the metric
            refuse_unlogged(cell.run, sweep.select)
    if dry_run:
        _print_plan(first)
        if first.to_run or options.force:
            print(f"{sweep.name}: the final stage runs what the tune stage will choose")
            return 0, 0
    else:
        code = drive(first)
        if code:
            return code, 0
    choices = choose(first)
    for one in choices:
        run = RunConfig.parse(one.config)
        values = ", ".join(f"{key}={format_value(value)}" for key, value in one.values.items()) or "nothing to draw"
        score = f"({sweep.select} {one.score:.2f})"
        label = f"{run.algorithm.name} {run.partition.make_label()}"
        print(f"{sweep.name}: chosen {label}: {values} {score}", flush=True)
    stage = make_final_stage(sweep, [one.config for one in choices])
    second = plan_and_print(stage, file, options, text)
    _refuse_changed(first.sheet, second.sheet)
    chosen = describe_choices(sweep, choices, second)
    cells = {hash: replace(cell, tuned=chosen[hash]) for hash, cell in second.sheet.cells.items()}
    second = replace(second, sheet=replace(second.sheet, cells=cells))
    if dry_run:
        _print_plan(second)
        return 0, 0
    trained = len(first.sheet.cells) - done + len(second.to_run)  # none is left to run afterwards
    return drive(second), trained


def _refuse_changed(tuned: Sheet, final: Sheet) -> None:
    """Raise UserError if the final stage has data, or a file of a model or partition, that the tune stage had not."""
    for section in ("data", "model", "partition"):
        known, found = (
            {json.dumps(part["digest"] if section == "data" else part) for part in each}
            for each in ([cell.identity[section] for cell in sheet.cells.values()] for sheet in (tuned, final))
        )
        if found - known:
            raise UserError(
                f"{section}: a file has changed since the tune stage; put it back and call again, or call again, and "
                "both stages run with the new one"
            )


def _print_plan(plan: Plan) -> None:
    from fedray.sweep.dry_run import print_plan  # here: only a dry run needs rich's tables

    print_plan(plan)
