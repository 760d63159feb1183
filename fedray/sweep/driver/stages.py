"""The two sweeps of a file with `tune` and `final`; the results of the first make the second."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedray.common.errors import UserError, format_duration, name_place
from fedray.components.base import format_value
from fedray.config import RunConfig
from fedray.datasets.base import Validation
from fedray.sweep.driver.run import drive, plan_and_print, refuse_unwritable
from fedray.sweep.file.points import apply_draw
from fedray.sweep.file.space import Space, format_range, is_at_edge
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan import plan as planning
from fedray.sweep.plan.cells import refuse_unlogged
from fedray.sweep.plan.draws import count_training_gradients, draw
from fedray.sweep.plan.plan import Options, Plan
from fedray.sweep.plan.studies import Study, make_studies

SHARED = (
    "description",
    "names",
    "base",
    "cases",
    "grid",
    "search",
    "samples",
    "searcher",
    "select",
    "scheduler",
    "changes",
)
"""Keys of the file that the tune stage adopts."""


@dataclass(frozen=True)
class Choice:
    """The best draw of a method and setting.

    Attributes:
        config: the setting, without the seed and the drawn keys.
        values: drawn key -> chosen value.
        score: mean over the seeds of the metric that selects.
        draws: the values of all draws.
        finished: number of draws that have finished with every seed.
        space: the space they were drawn from.
    """

    config: dict[str, Any]
    values: dict[str, Any]
    score: float
    draws: list[dict[str, Any]]
    finished: int
    space: Space


def make_tune_stage(sweep: Sweep) -> Sweep:
    """Return the tune stage as a sweep of its own, `NAME/tune`."""
    assert sweep.tune is not None  # noqa: S101 (for the type checker)
    held = {} if sweep.metric.is_on_test_set else {"data.validation": [_get_validation(sweep).model_dump(mode="json")]}
    given = {key: getattr(sweep, key) for key in SHARED}
    grid = sweep.grid | held | {"seed": list(sweep.tune.seeds)}
    return Sweep.model_validate(given | {"name": f"{sweep.name}/tune", "grid": grid})


def make_final_stage(sweep: Sweep, configs: Sequence[Mapping[str, Any]]) -> Sweep:
    """Return the final stage as a sweep of its own, with the file's name."""
    assert sweep.final is not None  # noqa: S101 (for the type checker)
    validation = _get_validation(sweep).model_dump(mode="json")
    held = {"data.validation": [validation]} if sweep.final.train_on == "training" else {}
    document: dict[str, Any] = {
        "name": sweep.name,
        "description": sweep.description,
        "names": sweep.names,
        "base": sweep.base,
        "cases": {"chosen": [dict(config) for config in configs]},
        "grid": held | {"seed": list(sweep.final.seeds)},
    }
    return Sweep.model_validate(document)


def preview_final_stage(sweep: Sweep) -> Sweep:
    """Return the final stage as far as it is known before tuning, with the first draw in place of the chosen one."""
    return make_final_stage(
        sweep,
        [apply_draw(config, draw(space, sweep.searcher, 0)) for config, space in sweep.points],
    )


def _get_validation(sweep: Sweep) -> Validation:
    return (sweep.tune and sweep.tune.validation) or Validation()


def choose(plan: Plan) -> list[Choice]:
    """Return the best draw of each method and setting of a tune stage whose cells all have an outcome.

    A method and setting without a draw that has finished with every seed is left out, with a printed line.

    Raises:
        UserError: none has such a draw.
    """
    known = plan.get_values(plan.known)
    studies = make_studies(plan.sweep, plan.maker.make)
    best = [(study, study.find_best(known, plan.sweep.metric.is_smaller_better)) for study in studies]
    choices = [_take(study, *one, known) for study, one in best if one is not None]
    advice = "; leave the scheduler out, or raise scheduler.grace" if plan.sweep.scheduler else ""
    lost = [
        f"{plan.sweep.name}: no draw of {study.draws[0].cells[0].label} has finished with every seed{advice}"
        for study, one in best
        if one is None
    ]
    if not choices:
        raise UserError(lost[0])
    for line in lost:
        print(f"{line}; the final stage leaves it out", flush=True)
    return choices


def _take(study: Study, index: int, score: float, known: Mapping[str, float | None]) -> Choice:
    config = {key: value for key, value in study.configs[0].items() if key != "seed"}
    if isinstance(config["data"], dict):
        config["data"] = {key: value for key, value in config["data"].items() if key != "validation"}
    finished = sum(one.score(known) is not None for one in study.draws)
    values = study.draws[index].values
    return Choice(config, values, score, [one.values for one in study.draws], finished, study.space)


def describe_choices(sweep: Sweep, choices: Sequence[Choice], plan: Plan) -> dict[str, dict[str, Any]]:
    """Describe the choices for the final stage's run in MLflow and its tables.

    Args:
        sweep: the file.
        choices: what the tune stage chose.
        plan: the final stage.

    Returns:
        Hash of a final cell -> how its configuration was chosen. `gradients` (of a batch, in the whole tune stage) is
        None if the size of the data is not known.
    """
    assert sweep.tune is not None  # noqa: S101 (for the type checker)
    assert sweep.final is not None  # noqa: S101 (for the type checker)
    found = dict[str, dict[str, Any]]()
    common = {
        "stage": f"{sweep.name}/tune",
        "select": sweep.select,
        "held_out": None if sweep.metric.is_on_test_set else _get_validation(sweep).model_dump(mode="json"),
        "train_on": sweep.final.train_on,
        "seeds": list(sweep.tune.seeds),
        "searcher": sweep.searcher.name,
        "scheduler": sweep.scheduler.rule if sweep.scheduler else "",
    }
    fixed = {key: values[0] for key, values in plan.sweep.grid.items() if key != "seed"}
    for one in choices:
        config = apply_draw(apply_draw(one.config, one.values), fixed)
        runs = [RunConfig.parse(apply_draw(one.config, values)) for values in one.draws]
        gradients = [count_training_gradients(run) for run in runs]
        chosen = common | {
            "values": one.values,
            "score": one.score,
            "draws": len(one.draws),
            "finished": one.finished,
            "rounds": len(sweep.tune.seeds) * sum(run.training.rounds for run in runs),
            "gradients": None if None in gradients else len(sweep.tune.seeds) * sum(filter(None, gradients)),
            "ranges": {key: format_range(distribution) for key, distribution in one.space.items()},
            "edges": [key for key in one.values if is_at_edge(one.values[key], one.space[key])],
        }
        found |= {plan.maker.make({**config, "seed": seed}).hash: chosen for seed in sweep.final.seeds}
    return found


def run_file(sweep: Sweep, file: str, options: Options = Options(), dry_run: bool = False) -> int:
    """Run a sweep, or both stages of one that tunes, and print what happens: `fedray sweep`.

    Returns:
        The exit code, as in `run.drive`.

    Raises:
        UserError: as in `run.drive`, or the store or the storage cannot be written to.
    """
    if not dry_run:
        refuse_unwritable()
    if sweep.tune is not None:
        return run_stages(sweep, file, options, dry_run)
    plan = plan_and_print(sweep, file, options)
    if not dry_run:
        return drive(plan)
    _print_plan(plan)
    return 0


def run_stages(sweep: Sweep, file: str, options: Options = Options(), dry_run: bool = False) -> int:
    """Tune, then test, resuming each; with `dry_run` only print what is left of either.

    Returns:
        The exit code, as in `run.drive`; that of the tune stage if some of its cells have no outcome. With
        `tune.blocks`, that of the first block whose code is not 0, which is the last to run.

    Raises:
        UserError: as in `run.drive`, `options.only` names cells, or no draw of a method and setting has finished.
    """
    if options.only:
        raise UserError("--only: the final stage follows from the whole tune stage; run the file whole")
    blocks = sweep.list_blocks()
    if len(blocks) == 1:
        return _run_block(blocks[0], file, options, dry_run)[0]
    from fedray.sweep.plan.estimate import list_distinct  # here: it imports rich's tables

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
    first = replace(plan_and_print(make_tune_stage(sweep), file, options), file=sweep)
    done = len(first.cells) - len(first.to_run)
    _refuse_undecided(first, file)
    if dry_run:
        _print_plan(first)
        if first.to_run or options.force:
            print(f"{sweep.name}: the final stage runs what the tune stage will choose")
            return 0, 0
    else:
        code = drive(first)
        if code:
            return code, 0
        first = planning.make_plan(make_tune_stage(sweep))
    choices = choose(first)
    for one in choices:
        print(f"{sweep.name}: chosen {describe_choice(one, sweep.select)}", flush=True)
    stage = make_final_stage(sweep, [apply_draw(one.config, one.values) for one in choices])
    second = plan_and_print(stage, file, options)
    chosen = describe_choices(sweep, choices, second)
    cells = {hash: replace(cell, tuned=chosen.get(hash, {})) for hash, cell in second.cells.items()}
    second = replace(second, cells=cells, file=sweep)
    if dry_run:
        _print_plan(second)
        return 0, 0
    return drive(second), len(first.cells) - done + len(second.to_run)


def _refuse_undecided(plan: Plan, file: str) -> None:
    """Raise UserError if a tune stage's cells will not log the selection metric, before hours are spent on them."""
    with name_place(file):
        for cell in plan.cells.values():
            refuse_unlogged(cell.run, plan.sweep.select)


def describe_choice(choice: Choice, select: str) -> str:
    """Return one line: the method and setting, the chosen values and their score."""
    run = RunConfig.parse(apply_draw(choice.config, choice.values))
    values = ", ".join(f"{key}={format_value(value)}" for key, value in choice.values.items()) or "nothing to draw"
    return f"{run.algorithm.name} {run.partition.make_label()}: {values} ({select} {choice.score:.2f})"


def _print_plan(plan: Plan) -> None:
    from fedray.sweep.driver.dry_run import print_plan  # here: only a dry run needs rich's tables

    print_plan(plan)
