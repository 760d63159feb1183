"""The page of `fedray report NAME --checklist neurips|acl`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from fedray.analysis.checklist import facts
from fedray.analysis.checklist.questions import CHECKLISTS
from fedray.analysis.checklist.spending import Spent, list_spending, sum_up
from fedray.analysis.data.collect import Collected, collect
from fedray.analysis.data.environments import describe_environments
from fedray.analysis.data.settings import split_settings
from fedray.analysis.output import make_environment
from fedray.common.errors import unknown
from fedray.tracking.store import find_sweeps

IN_THE_TABLE = "the settings of all cells are in the table below"


def make_page(sweep: Collected, checklist: str, metrics: Sequence[str], to: str = "") -> str:
    """Return the HTML.

    Args:
        sweep: the sweep from MLflow.
        checklist: `neurips` or `acl`.
        metrics: metrics of the paper's tables.
        to: the row that others are compared with; default fedavg if it is a row.

    Raises:
        UserError: the checklist is unknown, an environment of the runs is missing, or as in `tables.build.build`.
    """
    if checklist not in CHECKLISTS:
        raise unknown("--checklist", checklist, CHECKLISTS)
    chosen, stages = CHECKLISTS[checklist], find_stages(sweep)
    spent = list_spending(sweep)
    known = collect_facts(sweep, stages, spent, metrics, to)
    same, varied = split_settings(sweep.cells)
    environments = {one.hash: one for stage in stages.values() for one in describe_environments(stage)}
    return (
        make_environment()
        .get_template("checklist.html")
        .render(
            name=sweep.name,
            title=chosen.title,
            address=chosen.address,
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            questions=[(one, [line for name in one.facts for line in known[name]]) for one in chosen.questions],
            spent=[*spent, sum_up(spent)],
            format_hours=facts.format_hours,
            same=same,
            varied=varied,
            environments=environments.values(),
        )
    )


def find_stages(sweep: Collected) -> dict[str, Collected]:
    """Return the stages of a sweep from MLflow: `tuning` and `final`, or `sweep` alone."""
    tune = f"{sweep.name}/tune"
    if tune not in find_sweeps(sweep.client, sweep.parent.info.experiment_id):
        return {"sweep": sweep}
    return {"tuning": collect(tune), "final": sweep}


def collect_facts(
    sweep: Collected, stages: dict[str, Collected], spent: list[Spent], metrics: Sequence[str], to: str
) -> dict[str, list[str]]:
    """Return name -> lines of everything that the store knows. Raises UserError as `make_page`."""
    return {
        "claims": facts.describe_claims(sweep),
        "commands": facts.describe_commands(sweep),
        "software": facts.describe_software(stages),
        "assets": facts.describe_assets(sweep),
        "data": facts.describe_data(stages),
        "model": facts.describe_model(sweep),
        "search": facts.describe_search(sweep),
        "settings": [IN_THE_TABLE],
        "seeds": facts.describe_seeds(stages),
        "error bars": [line for metric in metrics for line in facts.describe_error_bars(sweep, metric, to)],
        "hardware": facts.describe_hardware(stages),
        "hours": facts.describe_hours(sweep, spent),
        "runs": facts.describe_runs(stages),
    }
