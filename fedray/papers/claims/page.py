"""Claims as one HTML page: the decisions, the tables behind them with the paper's numbers, and the sweeps' choices."""

from datetime import UTC, datetime

from fedray.analysis.output import make_environment
from fedray.analysis.tables.build import build
from fedray.analysis.tables.formats import to_html
from fedray.analysis.tables.published import has_printed
from fedray.analysis.tables.result_table import ResultTable
from fedray.papers.claims.decide import Decided, Verdict
from fedray.papers.claims.read import Claims
from fedray.sweep.file.shipped import get_sweeps_folder


def make_page(claims: Claims, decided: list[Decided], costs: list[str]) -> str:
    """Return the HTML. costs: cost of each claim, in words."""
    found: dict[tuple[str, str, str], ResultTable] = {}
    for one in decided:
        metrics = [name for name in (one.claim.metric, one.claim.minus or one.claim.mean_with) if name]
        key = one.sweep.name, ",".join(metrics), one.claim.average_over
        if key not in found:
            printed = one.published and all(has_printed(one.published, name) for name in metrics)
            paper = one.published if printed else ""
            found[key] = build(one.sweep, key[1], paper=paper, average_over=one.claim.average_over)
    return (
        make_environment()
        .get_template("claims.html")
        .render(
            name=claims.name,
            sources=claims.sources,
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            claims=[
                {
                    "claim": one.claim,
                    "sweep": one.sweep.name,
                    "metric": one.metric,
                    "status": one.whole.status,
                    "cost": cost,
                    "columns": [{"name": name, **_describe_column(found)} for name, found in one.columns.items()],
                }
                for one, cost in zip(decided, costs, strict=True)
            ],
            tables=list(found.values()),
            to_html=to_html,
            choices=[
                (name, text)
                for name in dict.fromkeys(one.sweep.name for one in decided)
                if (text := read_choices(name))
            ],
        )
    )


def read_choices(sweep: str) -> str:
    """Return the comment at the head of a sweep's file: settings that the paper leaves unstated, and our choices."""
    path = get_sweeps_folder() / f"{sweep}.yaml"
    if not path.exists():
        return ""
    head = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        head.append(line.removeprefix("#").strip())
    return " ".join(head)


def _describe_column(found: Verdict) -> dict[str, str]:
    pair = found.closest or (found.pairs[0] if found.pairs else None)
    low, high = found.seeds
    return {
        "status": found.status,
        "rival": pair.rival if pair is not None and pair.gaps else "",
        "gap": "" if pair is None or pair.mean is None else f"{pair.mean:+.2f}",
        "interval": str(pair.interval) if pair is not None and pair.interval else "",
        "printed": "" if found.printed is None else f"{found.printed:+.2f}",
        "seeds": str(low) if low == high else f"{low} to {high}",
    }
