"""A case of the comparison: a method's options and the settings."""

from dataclasses import dataclass, field
from typing import Any

BASE: dict[str, Any] = {
    "local_epochs": 2,
    "batch_size": 4,
    "shuffle": False,
    "lr": 0.1,
    "lr_decay": 0.9,
    "weight_decay": 0.02,
    "momentum": 0.0,
    "clip_norm": None,
    "clip_scope": "direction",
    "aggregation": "uniform",
    "server_lr": 1.0,
    "lr_decay_within": 1.0,
    "weight_decay_on": "all",
    "nominal_steps": False,
    "last_batch": "keep",
    "relaxed_start": 0.0,
    "relaxed_average": "updates",
}

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.5},
    "clip": {"clip_norm": 0.5},
    "clip as code": {"clip_norm": 0.5, "clip_scope": "code"},
    "samples": {"aggregation": "samples"},
    "batches": {"aggregation": "batches"},
    "server_lr": {"server_lr": 0.7},
    "lr within": {"lr_decay_within": 0.8},
    "decay of weights": {"weight_decay_on": "weights"},
    "whole batches": {"last_batch": "drop", "lr_decay_within": 0.8},
    "relaxed": {"relaxed_start": 0.4},
    "relaxed, models": {"relaxed_start": 0.4, "relaxed_average": "models"},
    "shuffle": {"shuffle": True},
    "together": {"momentum": 0.5, "clip_norm": 0.5, "aggregation": "samples", "server_lr": 0.7, "shuffle": True},
    "no momentum": {"clip_norm": 0.5, "aggregation": "samples", "server_lr": 0.7, "shuffle": True},
    "softmax": {"momentum": 0.5},
}
"""What a setting changes in `training`. `softmax` is softmax regression, every other one the MLP."""


@dataclass(frozen=True)
class Case:
    """`options`: the algorithm section without its name, which are the oracle's arguments too; `setting`: of SETTINGS;
    `equals`: the label of the method's case that gives the same by definition; `inert`: options without influence here;
    `model`: options of the MLP, which only NORMED has."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    setting: str = "plain"
    training: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    equals: str = ""
    inert: tuple[str, ...] = ()
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return "-".join(part for part in (self.method, self.label, self.setting) if part)

    @property
    def numbers(self) -> list[str]:
        """The options with a number that is not 0, FedSOL's of its proximal loss too."""
        options = {**self.options, **self.options.get("proximal", {})}
        return [name for name, value in options.items() if isinstance(value, float) and value]

    def scaled(self, name: str, factor: float) -> dict[str, Any]:
        """The options with one number changed."""
        proximal = self.options.get("proximal", {})
        if name in proximal:
            return {**self.options, "proximal": {**proximal, name: factor * proximal[name]}}
        return {**self.options, name: factor * self.options[name]}


def cases(
    method: str,
    label: str = "",
    settings: tuple[str, ...] = ("plain", "together"),
    training: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    equals: str = "",
    inert: tuple[str, ...] = (),
    **options: Any,
) -> list[Case]:
    """One case per setting."""
    return [
        Case(method, options, setting, training or {}, label, equals and f"{equals}-{setting}", inert, model or {})
        for setting in settings
    ]


NORMED: dict[str, Any] = {"model": {"feature_norm": "batch"}, "training": {"batch_size": 7}}
"""Batch normalisation before the head, and batches of which none is a single sample."""
PLAIN = ("plain",)
OWN = ("plain", "no momentum")
PULL = ("plain", "together", "clip as code")
