"""The components of a sweep whose papers and licences its readers need."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedray.common.errors import FORMS
from fedray.config import COMPONENTS

SECTIONS = ("algorithm", "data", "partition", "model")
"""Sections in the order of their citations: methods and data first."""


@dataclass(frozen=True)
class Cited:
    """A component as its class declares it; a class of your own is not imported and declares nothing.

    Attributes:
        section: the section of a configuration that chooses it.
        name: its name there.
        paper: as `Component.paper` has it.
        licence: of a data set, as its publisher states it; empty if none is known.
    """

    section: str
    name: str
    paper: str
    licence: str = ""


def list_components(configs: Iterable[Mapping[str, Any]]) -> list[Cited]:
    """Return the components of configurations, each once, in the order of SECTIONS.

    Args:
        configs: resolved configurations, as a store holds them.
    """
    found = dict.fromkeys(pair for config in configs for pair in _iter_names(config))
    return [find_component(*pair) for pair in sorted(found, key=lambda pair: SECTIONS.index(pair[0]))]


def find_component(section: str, name: str) -> Cited:
    """Return what a registered class declares, without importing a class of your own."""
    kind = COMPONENTS[section][0].get(name.removesuffix(FORMS))
    return Cited(section, name, getattr(kind, "paper", ""), getattr(kind, "licence", ""))


def _iter_names(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield section and name; a method that `training` adds to others counts as a method."""
    for section in SECTIONS:
        chosen = config.get(section, {})
        yield section, str(chosen["name"] if isinstance(chosen, Mapping) else chosen)
    training = config.get("training", {})
    for key in ("aggregation", "server_step"):
        if training.get(key) in COMPONENTS["algorithm"][0]:
            yield "algorithm", str(training[key])
