"""Metrics and probes: what is computed of trained models, of a cohort, and of its local training."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fedray.common.errors import UserError
from fedray.components.plugins import resolve
from fedray.probes.probe import Probe, find_declared, find_meant
from fedray.probes.probes import Adaptation, Angles, Classes, Drift, Forgetting, Lambda, ProximalProbe, Step

PROBES: dict[str, type[Probe]] = {
    kind.name: kind for kind in (Adaptation, Angles, Classes, Drift, Forgetting, Lambda, ProximalProbe, Step)
}


def make_probes(values: Sequence[object]) -> tuple[Probe, ...]:
    """Return the probes of `evaluation.probes`, each given as a name or a mapping with `name` and options.

    Raises UserError if a name is unknown, given twice, or not a probe; an option is wrong; the names that a probe
    declares do not agree.
    """
    probes = tuple(resolve("evaluation.probes", value, PROBES, Probe) for value in values)
    names = [probe.name for probe in probes]
    if len(set(names)) < len(names):
        raise UserError(f"evaluation.probes: found {', '.join(names)}; each once")
    for probe in probes:
        for key in ("lower_is_better", "unranked"):
            for name in sorted(getattr(probe, key)):
                if near := find_meant(name, probe.metrics.keys()):
                    raise UserError(
                        f"evaluation.probes: {probe.name} declares {name} in {key}, which is not in `metrics`; did you "
                        f"mean {near}?"
                    )
    return probes


DECLARED = {name: title for kind in PROBES.values() for name, title in kind.metrics.items()}
"""Metric -> title of all these probes."""
LOWER = frozenset().union(*(kind.lower_is_better for kind in PROBES.values()))
"""The metrics of these probes whose smallest value is the best."""
UNRANKED = frozenset().union(*(kind.unranked for kind in PROBES.values()))
"""The metrics of these probes without a best value."""


def title_metric(metric: str, own: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the axis title of a probe's metric with its unit; for an unknown metric its name."""
    plain, titles = metric.removesuffix("_std"), {**DECLARED, **own}
    name = find_declared(plain, titles)
    if name is None:
        return metric
    which = f" {plain[len(name) - 1 :]}" if name.endswith("*") else ""
    return titles[name] + which + (", standard deviation over the cohort" if plain != metric else "")
