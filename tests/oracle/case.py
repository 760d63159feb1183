"""What a case of the comparison is: a method's options beside the arguments of its oracle, and the settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .tensors import Tensors

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
    "shuffle": {"shuffle": True},
    "together": {"momentum": 0.5, "clip_norm": 0.5, "aggregation": "samples", "server_lr": 0.7, "shuffle": True},
    "softmax": {"momentum": 0.5},
}
"""What a setting changes in `training`. `softmax` is softmax regression, every other one the MLP."""


@dataclass(frozen=True)
class Case:
    """`options`: the algorithm section without its name; `arguments`: the oracle's; `setting`: of SETTINGS;
    `equals`: the id of the case that gives the same by definition; `inert`: arguments without influence here;
    `model`: options of the MLP, which only NORMED has.
    """

    method: str
    oracle: Callable[..., Tensors]
    options: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    setting: str = "plain"
    training: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    equals: str = ""
    inert: tuple[str, ...] = ()
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return "-".join(part for part in (self.method, self.label, self.setting) if part)


def cases(
    method: str,
    oracle: Callable[..., Tensors],
    options: dict[str, Any] | None = None,
    label: str = "",
    equals: str = "",
    settings: tuple[str, ...] = ("plain", "together", "softmax"),
    training: dict[str, Any] | None = None,
    inert: tuple[str, ...] = (),
    model: dict[str, Any] | None = None,
    **arguments: Any,
) -> list[Case]:
    """One case per setting; the options are the oracle's arguments where they have the same names."""
    return [
        Case(
            method,
            oracle,
            arguments if options is None else options,
            arguments,
            setting,
            training or {},
            label,
            equals and f"{equals}-{setting}",
            inert,
            model or {},
        )
        for setting in settings
    ]


NORMED: dict[str, Any] = {"model": {"feature_norm": "batch"}, "training": {"batch_size": 7}}
"""Batch normalisation before the head, and batches of which none is a single sample."""
MLP_ONLY = ("plain", "together")
PLAIN = ("plain",)
EVERYONE = ("plain", "together", "softmax", "shuffle")
CODE = ("plain", "together")
PULL = ("plain", "together", "softmax", "clip as code")
