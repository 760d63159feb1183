"""Tune, then test: the two sweeps that a file with `tune` and `final` means; the results of one make the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedray.common.component import as_written
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets.base import Validation
from fedray.sweep import plan as planning
from fedray.sweep.cells import maker, refuse_unlogged
from fedray.sweep.file.sections import lower_is_better, on_test_set
from fedray.sweep.file.space import Space, at_edge, draw, written
from fedray.sweep.gradients import training_gradients
from fedray.sweep.grid import Sweep, drawn
from fedray.sweep.plan import Plan
from fedray.sweep.run import drive, planned
from fedray.sweep.studies import Study, advance, studies

SHARED = (
    "description",
    "base",
    "cases",
    "grid",
    "search",
    "samples",
    "budget",
    "searcher",
    "select",
    "scheduler",
)
"""What the tune stage takes over from the file."""


@dataclass(frozen=True)
class Choice:
    """The best draw of a method and setting.

    Attributes:
        config: the setting, without seed and without the drawn keys.
        values: drawn key -> chosen value.
        score: mean over the seeds of the metric that selects.
        draws: the values of all draws.
        finished: how many of them have finished with every seed.
        space: what was drawn from.
    """

    config: dict[str, Any]
    values: dict[str, Any]
    score: float
    draws: list[dict[str, Any]]
    finished: int
    space: Space


def tuning(sweep: Sweep) -> Sweep:
    """The tune stage as a sweep of its own, `NAME/tune`."""
    assert sweep.tune is not None  # noqa: S101 (for the type checker)
    held = {} if on_test_set(sweep.select) else {"data.validation": [_held_out(sweep).model_dump(mode="json")]}
    given = {key: getattr(sweep, key) for key in SHARED}
    grid = sweep.grid | held | {"seed": list(sweep.tune.seeds)}
    return Sweep.model_validate(given | {"name": f"{sweep.name}/tune", "grid": grid})


def final(sweep: Sweep, configs: Sequence[Mapping[str, Any]]) -> Sweep:
    """The final stage as a sweep of its own, with the file's name.

    Args:
        sweep: the file.
        configs: the configuration of each method and setting, without seeds.
    """
    assert sweep.final is not None  # noqa: S101 (for the type checker)
    held = {"data.validation": [_held_out(sweep).model_dump(mode="json")]} if sweep.final.train_on == "training" else {}
    document: dict[str, Any] = {
        "name": sweep.name,
        "description": sweep.description,
        "base": sweep.base,
        "cases": {"chosen": [dict(config) for config in configs]},
        "grid": held | {"seed": list(sweep.final.seeds)},
        "claims": sweep.claims,
    }
    return Sweep.model_validate(document)


def at_first_draws(sweep: Sweep) -> Sweep:
    """The final stage as far as it is known before tuning: the first draw stands for the chosen one."""
    return final(
        sweep,
        [drawn(config, draw(space, sweep.searcher, 0, sweep.samples)) for config, space in sweep.combinations()],
    )


def _held_out(sweep: Sweep) -> Validation:
    return (sweep.tune and sweep.tune.validation) or Validation()


def choose(plan: Plan) -> list[Choice]:
    """The best draw of each method and setting of a tune stage all of whose cells have an outcome.

    Raises:
        UserError: of a method and setting no draw has finished with every seed.
    """
    known, make = plan.values(plan.known), maker(plan.sweep, plan.problems)
    found = studies(plan.sweep, make)
    list(advance(found, known))
    return [_best(plan, study, known) for study in found]


def _best(plan: Plan, study: Study, known: Mapping[str, float | None]) -> Choice:
    best = study.best(known, lower_is_better(plan.sweep.select))
    if best is None:
        advice = "; leave the scheduler out, or raise scheduler.grace" if plan.sweep.scheduler else ""
        raise UserError(
            f"{plan.sweep.name}: no draw of {study.draws[0].cells[0].label} has finished with every seed{advice}"
        )
    index, score = best
    config = {key: value for key, value in study.configs[0].items() if key != "seed"}
    if isinstance(config["data"], dict):
        config["data"] = {key: value for key, value in config["data"].items() if key != "validation"}
    finished = sum(one.score(known) is not None for one in study.draws)
    values = study.draws[index].values
    return Choice(config, values, score, [one.values for one in study.draws], finished, study.space)


def record(sweep: Sweep, choices: Sequence[Choice], plan: Plan) -> dict[str, dict[str, Any]]:
    """What the final stage's run in MLflow says of the choice, for its tables.

    Args:
        sweep: the file.
        choices: what the tune stage chose.
        plan: the final stage.

    Returns:
        Hash of a final cell -> how its configuration was chosen. `gradients` (of a batch, of all of its tune stage) is
        None where the size of the data is not known.
    """
    assert sweep.tune is not None  # noqa: S101 (for the type checker)
    assert sweep.final is not None  # noqa: S101 (for the type checker)
    make, found = maker(plan.sweep, plan.problems), dict[str, dict[str, Any]]()
    common = {
        "stage": f"{sweep.name}/tune",
        "select": sweep.select,
        "held_out": None if on_test_set(sweep.select) else _held_out(sweep).model_dump(mode="json"),
        "train_on": sweep.final.train_on,
        "seeds": list(sweep.tune.seeds),
        "searcher": sweep.searcher.name,
        "scheduler": sweep.scheduler.rule if sweep.scheduler else "",
        "budget": sweep.budget,
    }
    for one in choices:
        config = drawn(drawn(one.config, one.values), _fixed(plan.sweep))
        runs = [RunConfig.parse(drawn(one.config, values)) for values in one.draws]
        gradients = [training_gradients(run) for run in runs]
        chosen = common | {
            "values": one.values,
            "score": one.score,
            "draws": len(one.draws),
            "finished": one.finished,
            "rounds": len(sweep.tune.seeds) * sum(run.training.rounds for run in runs),
            "gradients": None if None in gradients else len(sweep.tune.seeds) * sum(filter(None, gradients)),
            "ranges": {key: written(distribution) for key, distribution in one.space.items()},
            "edges": [key for key in one.values if at_edge(one.values[key], [each[key] for each in one.draws])],
        }
        found |= {make({**config, "seed": seed}).hash: chosen for seed in sweep.final.seeds}
    return found


def _fixed(sweep: Sweep) -> dict[str, Any]:
    """The keys that the final stage sets for all."""
    return {key: values[0] for key, values in sweep.grid.items() if key != "seed"}


def run_stages(
    sweep: Sweep,
    file: str,
    force: bool = False,
    only: Sequence[str] = (),
    max_concurrent: int | None = None,
    address: str | None = None,
    dry_run: bool = False,
) -> int:
    """Tune, then test, each resumed where it was left; with `dry_run` only say what is left of either.

    Returns:
        The exit code, as `run.drive`; that of the tune stage where some of its cells have no outcome.

    Raises:
        UserError: as `run.drive`, `only` names cells, or no draw of a method and setting has finished.
    """
    if only:
        raise UserError("--only: the final stage follows from the whole tune stage; run the file whole")
    first = planned(tuning(sweep), file, force)
    _refuse_undecided(first, file)
    if dry_run:
        _show(first, address)
        if first.to_run or force:
            print(f"{sweep.name}: the final stage runs what the tune stage will choose")
            return 0
    else:
        code = drive(first, max_concurrent, address)
        if code:
            return code
        first = planning.plan(tuning(sweep))
    choices = choose(first)
    for one in choices:
        print(f"{sweep.name}: chosen {told(one, sweep.select)}", flush=True)
    second = planned(final(sweep, [drawn(one.config, one.values) for one in choices]), file, force)
    second = replace(second, tuned=record(sweep, choices, second))
    if dry_run:
        _show(second, address)
        return 0
    return drive(second, max_concurrent, address)


def _refuse_undecided(plan: Plan, file: str) -> None:
    """Raise UserError where the cells of a tune stage will not log what chooses, before hours are spent on them."""
    try:
        for cell in plan.cells.values():
            refuse_unlogged(cell.run, plan.sweep.select)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def told(choice: Choice, select: str) -> str:
    """One line: the method and setting, the chosen values and what they scored."""
    run = RunConfig.parse(drawn(choice.config, choice.values))
    values = ", ".join(f"{key}={as_written(value)}" for key, value in choice.values.items()) or "nothing to draw"
    return f"{run.algorithm.name} {run.partition.label()}: {values} ({select} {choice.score:.2f})"


def _show(plan: Plan, address: str | None) -> None:
    from fedray.sweep.dry_run import show  # here: only a dry run needs rich's tables

    show(plan, address)
