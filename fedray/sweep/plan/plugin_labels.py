"""Symbols and titles of plug-ins, stored with a sweep's cells for tables and figures.

Analysis imports no class that a store names, so these words have to be in the store.
"""

from typing import Any

from fedray.config import RunConfig


def describe_plugins(run: RunConfig) -> dict[str, Any]:
    """Return the symbols and titles of a run's plug-ins, JSON types only; empty if it has none.

    Returns:
        `symbols`: class -> option -> letter (`Component.symbols`). `required`: class of the partition -> its options
        without a default. `names`: class -> its own `name`.
        `titles`: metric -> title (`Probe.metrics`). `lower`: metrics whose smallest value is the
        best (`Probe.lower_is_better`).
    """
    components = (run.data, run.partition, run.model, run.algorithm, *run.evaluation.probes)
    own = [component for component in components if ":" in component.name]
    if not own:
        return {}
    probes = [probe for probe in run.evaluation.probes if probe in own]
    return {
        "symbols": {
            one.name: {
                option: one.get_symbol(option) for option in type(one).model_fields if one.get_symbol(option) != option
            }
            for one in own
        },
        "required": {one.name: one.list_required() for one in own if one is run.partition},
        "names": {one.name: one.own_name for one in own if one.own_name},
        "titles": {metric: title for probe in probes for metric, title in probe.metrics.items()},
        "lower": sorted(metric for probe in probes for metric in probe.lower_is_better),
    }
