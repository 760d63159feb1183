"""What is compared: each method's options in a configuration beside the arguments of its oracle, and the settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import averaging, corrections, sharpness
from .tensors import Tensors

BASE: dict[str, Any] = {"local_epochs": 2, "batch_size": 4, "shuffle": False, "lr": 0.1, "lr_decay": 0.9,
                        "weight_decay": 0.02, "momentum": 0.0, "clip_norm": None, "aggregation": "uniform",
                        "server_lr": 1.0}

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.5},
    "clip": {"clip_norm": 0.5},
    "samples": {"aggregation": "samples"},
    "server_lr": {"server_lr": 0.7},
    "shuffle": {"shuffle": True},
    "together": {"momentum": 0.5, "clip_norm": 0.5, "aggregation": "samples", "server_lr": 0.7, "shuffle": True},
    "softmax": {"momentum": 0.5},
}
"""What a setting changes in `training`. `softmax` is softmax regression, every other one the MLP."""


@dataclass(frozen=True)
class Case:
    """`options`: the algorithm section without its name; `arguments`: the oracle's; `setting`: of SETTINGS;
    `equals`: the id of the case that gives the same by definition."""

    method: str
    oracle: Callable[..., Tensors]
    options: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    setting: str = "plain"
    training: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    equals: str = ""

    @property
    def id(self) -> str:
        return "-".join(part for part in (self.method, self.label, self.setting) if part)


def cases(method: str, oracle: Callable[..., Tensors], options: dict[str, Any] | None = None, label: str = "",
          equals: str = "", settings: tuple[str, ...] = ("plain", "together", "softmax"),
          training: dict[str, Any] | None = None, **arguments: Any) -> list[Case]:
    """One case per setting; the options are the oracle's arguments where they have the same names."""
    return [Case(method, oracle, arguments if options is None else options, arguments, setting, training or {}, label,
                 equals and f"{equals}-{setting}")
            for setting in settings]


MLP_ONLY = ("plain", "together")
PLAIN = ("plain",)

CASES: list[Case] = [
    *cases("fedavg", averaging.fedavg, settings=tuple(SETTINGS)),
    *cases("fedprox", averaging.fedprox, mu=0.7),
    *cases("scaffold", corrections.scaffold),
    *cases("feddyn", corrections.feddyn, alpha=0.3),
    *cases("feddyn", corrections.feddyn_gradient_units, alpha=0.3, label="gradient units",
           equals="feddyn"),
    *cases("fedcm", averaging.fedcm, alpha=0.3),
    *cases("fedsam", sharpness.fedsam, rho=0.3),
    *cases("mofedsam", sharpness.mofedsam, rho=0.3, beta=0.3),
    *[case for form in ("fusion", "global", "neighbour") for case in cases(
        "fedtoga", sharpness.fedtoga, {"alpha": 0.2, "rho": 0.3, "kappa": 2.0, "beta": 0.8, "perturbation": form},
        label=form, lam=0.2, rho=0.3, kappa=2.0, beta=0.8, perturbation=form)],
]

NOT_COMPARED: dict[str, str] = {}
"""Method -> why it has no oracle."""
