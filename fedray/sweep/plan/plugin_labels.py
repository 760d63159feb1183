"""The words of a run's plug-ins, which a sweep lists with its cells for tables and figures."""

from fedray.cells.spec import PluginLabels
from fedray.config import RunConfig


def describe_plugins(run: RunConfig) -> PluginLabels:
    """Return how tables and figures show a run's plug-ins; empty if it has none."""
    own = [component for component in run.components if ":" in component.name]
    probes = [probe for probe in run.evaluation.probes if probe in own]
    return PluginLabels(
        {
            one.name: {
                option: one.get_symbol(option) for option in type(one).model_fields if one.get_symbol(option) != option
            }
            for one in own
        },
        {one.name: one.list_required() for one in own if one is run.partition},
        {one.name: one.own_name for one in own if one.own_name},
        {metric: title for probe in probes for metric, title in probe.metrics.items()},
        sorted(metric for probe in probes for metric in probe.lower_is_better),
    )
