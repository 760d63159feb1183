"""The probes by name."""

from collections.abc import Sequence

from fedray.common.errors import UserError
from fedray.common.plugins import resolve
from fedray.evaluation.probe import Probe
from fedray.evaluation.probes import Adaptation, Angles, Classes, Drift, Forgetting, Lambda, Proximal

PROBES: dict[str, type[Probe]] = {
    kind.name: kind for kind in (Adaptation, Angles, Classes, Drift, Forgetting, Lambda, Proximal)
}


def probes(values: Sequence[object]) -> tuple[Probe, ...]:
    """The probes of `evaluation.probes`: of each a name or a mapping with `name` and options.

    Raises:
        UserError: a name is unknown, given twice, or not that of a probe; an option is wrong.
    """
    found = tuple(resolve("evaluation.probes", value, PROBES, Probe) for value in values)
    names = [probe.name for probe in found]
    if len(set(names)) < len(names):
        raise UserError(f"evaluation.probes: found {', '.join(names)}; each once")
    return found


def metric_title(metric: str) -> str:
    """What an axis says of a probe's metric, its unit included; of an unknown one its name."""
    plain = metric.removesuffix("_std")
    for kind in PROBES.values():
        for name, title in kind.metrics.items():
            if plain == name or (name.endswith("*") and plain.startswith(name[:-1])):
                which = f" {plain[len(name) - 1 :]}" if name.endswith("*") else ""
                return title + which + (", standard deviation over the cohort" if plain != metric else "")
    return metric
