"""A run's configuration: typed, validated, hashable. Unknown or conflicting keys are refused by name before a run
starts.
"""

import pickle
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from fedray.algorithms import ALGORITHMS, Algorithm, algorithm
from fedray.algorithms.fedexp import FedExP
from fedray.algorithms.partial import share_matrix
from fedray.common.errors import UserError, find_nearest
from fedray.components.base import Checked, Component, describe
from fedray.components.identity import hash_of, iter_parts
from fedray.components.plugins import find_class, refuse_unreachable
from fedray.components.sources import digest_source
from fedray.config.clients import Clients
from fedray.config.evaluation import Evaluation
from fedray.config.runtime import Runtime
from fedray.config.training import Training
from fedray.datasets import DATASETS, make_data_source
from fedray.datasets.base import DataSource
from fedray.models import MODELS, make_model_spec
from fedray.models.base import ModelSpec
from fedray.models.custom import make_custom_model
from fedray.partitions import PARTITIONS, make_partition
from fedray.partitions.base import Partition
from fedray.probes.probes import AgainstGlobal, Angles

NUMERICS = 1
"""Part of every cell's identity. Increment when configurations give other numbers than before."""
COMPONENTS: dict[str, tuple[Any, ...]] = {
    "data": (DATASETS, DataSource),
    "partition": (PARTITIONS, Partition),
    "model": (MODELS, ModelSpec, make_custom_model),
    "algorithm": (ALGORITHMS, Algorithm),
}
"""Section that is chosen by name -> its classes by name, their base, and what adapts a class without this base."""
PLAIN: dict[str, type[Checked]] = {
    "training": Training,
    "clients": Clients,
    "evaluation": Evaluation,
    "runtime": Runtime,
}
"""Section without a name -> its class."""
MEANT = {
    "batch": "training.batch_size",
    "communication_rounds": "training.rounds",
    "count": "clients.total",
    "cpus": "runtime.cpus_per_actor",
    "dataset": "data",
    "epochs": "training.local_epochs",
    "eta": "training.lr",
    "frac": "clients.per_round",
    "fraction": "clients.per_round",
    "gpu": "runtime.gpus_per_actor",
    "gpus": "runtime.gpus_per_actor",
    "interval": "evaluation.every",
    "learning_rate": "training.lr",
    "method": "algorithm",
    "n_clients": "clients.total",
    "num_clients": "clients.total",
    "num_rounds": "training.rounds",
    "number": "clients.total",
    "optimiser": "training.optimizer",
    "participation": "clients.per_round",
    "steps": "training.local_steps",
    "train": "training",
    "workers": "runtime.actors",
}
"""Word of other frameworks -> the key of a run."""
OF_SWEEPS = {"name", "description", "names", "base", "grid", "cases", "search", "samples", "searcher"}
OF_SWEEPS |= {"select", "scheduler", "stop", "tune", "final", "smoke", "changes", "extends"}
"""Keys of a sweep's file."""


def find_component(section: str, name: str | type) -> type[Component]:
    """Return the class that a section of COMPONENTS names. Raises UserError if there is none of that name."""
    kind: type[Component] = find_class(section, name, *COMPONENTS[section])
    return kind


class RunConfig(Checked):
    """One run: one configuration and one seed."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    seed: int = Field(0, ge=0, lt=2**32)
    data: Annotated[DataSource, BeforeValidator(make_data_source)]
    partition: Annotated[Partition, BeforeValidator(make_partition)]
    clients: Clients = Clients()
    model: Annotated[ModelSpec, BeforeValidator(make_model_spec)]
    algorithm: Algorithm
    training: Training = Field(Training(), validate_default=True)
    evaluation: Evaluation = Evaluation()
    runtime: Runtime = Runtime()

    @field_validator("algorithm", mode="before")
    @classmethod
    def _make_algorithm(cls, value: Any, info: ValidationInfo) -> Algorithm:
        method, model = algorithm(value), info.data.get("model")
        if model is None or model.lora is None or model.lora.share == "both":
            return method
        return share_matrix(method, model.lora.share)

    @field_validator("training", mode="before")
    @classmethod
    def _choose_optimizer(cls, value: Any, info: ValidationInfo) -> Any:
        """Let a method whose name stands for a local optimiser (`local-adamw`) choose it."""
        method = info.data.get("algorithm")
        optimizer = method.optimizer if method is not None else ""
        if not optimizer or (isinstance(value, Mapping) and "optimizer" in value):
            return value
        if isinstance(value, Mapping):
            return {"optimizer": optimizer, **value}
        plain = isinstance(value, Training) and value.optimizer == "sgd"
        return value.model_copy(update={"optimizer": optimizer}) if plain else value

    @field_serializer("data", "partition", "model", "algorithm")
    def _dump_options(self, component: Component) -> dict[str, Any]:
        return component.list_options()

    @model_validator(mode="after")
    def _check(self) -> Self:
        cohorts, personal = self.clients.cohorts, self.evaluation.personal
        if self.data.test is not None and personal is not None and personal.split != "disjoint":
            raise UserError(
                f"evaluation.personal.split: found {personal.split}; with data.test clients have test samples already"
            )
        if cohorts is not None and len(cohorts) < self.training.rounds:
            raise UserError(f"clients.cohorts: lists {len(cohorts)} rounds, training.rounds is {self.training.rounds}")
        if self.training.precision == "tf32" and self.runtime.torch_device != "cuda":
            raise UserError("training.precision: found tf32, which CPUs do not have; fp32 or bf16")
        if self.runtime.backend == "ray":
            for component in self.components:
                refuse_unreachable(component)
        self.algorithm.check(self.model)
        self._refuse_second_rule()
        self._refuse_optimizer()
        if self.evaluation.train and self.algorithm.keeps != "none":
            raise UserError(
                f"evaluation.train: tests the global model; {self.algorithm.name} has none that could be tested"
            )
        if self.evaluation.auc and self.algorithm.keeps != "none":
            raise UserError(f"evaluation.auc: tests the global model; {self.algorithm.name} has none")
        for probe in self.evaluation.probes:
            probe.check(self.algorithm)
            if isinstance(probe, Angles) and (probe.client or 0) >= self.clients.total:
                raise UserError(
                    f"evaluation.probes: found client {probe.client}; clients.total is {self.clients.total}"
                )
            if self.training.relaxed_start and isinstance(probe, AgainstGlobal):
                raise UserError(f"training.relaxed_start: {probe.name} compares with the x at which no client starts")
        if self.clients.unseen:
            found, method = f"clients.unseen: found {self.clients.unseen}", self.algorithm
            if self.evaluation.personal is None:
                raise UserError(f"{found}; evaluation.personal is required, which deals and tests their samples")
            if method.shares == "none" and not method.overrides("message"):
                raise UserError(f"{found}; {method.name} sends nothing to a newcomer")
        return self

    def _refuse_second_rule(self) -> None:
        """Raise UserError if `training` names a rule that the method has of its own, or that it cannot use."""
        method = self.algorithm
        if self.weighing is not method and method.overrides("weights"):
            raise UserError(f"training.aggregation: found feddisco; {method.name} has weights of its own")
        if self.training.relaxed_start and method.shares == "none":
            raise UserError(f"training.relaxed_start: relaxes what clients receive; {method.name} sends nothing")
        if self.stepping is not method:
            if method.shares == "none":
                raise UserError(f"training.server_step: fedexp scales the average; {method.name} has none")
            if method.overrides("server_step") or method.tests_average:
                raise UserError(f"training.server_step: found fedexp; {method.name} has a server step of its own")
        if self.training.relaxed_average == "models":
            for one in (method, self.stepping):
                if one.scales_update or one.overrides("server_step"):
                    raise UserError(f"training.relaxed_average: found models; {one.name} uses the updates themselves")

    def _refuse_optimizer(self) -> None:
        """Raise UserError if the method's formulas do not hold for the local optimiser."""
        method, training = self.algorithm, self.training
        if method.optimizer and training.optimizer != method.optimizer:
            raise UserError(
                f"training.optimizer: found {training.optimizer}; {method.name} is the name of fedavg with "
                f"{method.optimizer}"
            )
        if training.optimizer != "sgd" and (reason := method.bound_to_sgd):
            raise UserError(f"training.optimizer: found {training.optimizer}; {method.name} {reason}, so it needs sgd")
        if training.momentum and method.overrides("local_optimizer"):
            raise UserError(f"training.momentum: found {training.momentum}; {method.name} has an optimiser of its own")

    @property
    def components(self) -> tuple[Component, ...]:
        """Return everything that the run chooses by name."""
        return (self.data, self.partition, self.model, self.algorithm, *self.evaluation.probes)

    @property
    def has_own_code(self) -> bool:
        """Return True if the user wrote a part of the run, which may draw from any global generator."""
        return any(":" in component.name for component in self.components)

    @property
    def weighing(self) -> Algorithm:
        """Return the method whose `weights` count: that of `training.aggregation`, or the run's."""
        return self.training.feddisco if self.training.aggregation == "feddisco" else self.algorithm

    @property
    def stepping(self) -> Algorithm:
        """Return the method whose `server_step` counts: that of `training.server_step`, or the run's."""
        return self.training.fedexp if self.training.server_step == "fedexp" else self.algorithm

    @property
    def keeps_states(self) -> bool:
        """Return `runtime.keep_states`; if it is not given, True if the clients' states hold the personal models."""
        if self.runtime.keep_states is not None:
            return self.runtime.keep_states
        return self.algorithm.keeps != "none" or self.algorithm.personal == "kept"

    @property
    def channels_last(self) -> bool:
        """Return `training.channels_last`; if it is not given, the faster layout on the device."""
        if self.training.channels_last is not None:
            return self.training.channels_last
        return self.model.channels_last if self.runtime.torch_device == "cpu" else self.training.precision != "fp32"

    @classmethod
    def parse(cls, value: "Mapping[str, Any] | RunConfig") -> "RunConfig":
        """Validate a nested mapping. Raises UserError: one line that names the key."""
        if isinstance(value, RunConfig):
            return value
        try:
            return cls.model_validate(dict(value))
        except ValidationError as error:
            raise describe(error, "", cls) from None

    @classmethod
    def suggest(cls, above: str, key: str) -> str:
        if not above and key in OF_SWEEPS:
            more = "; in Python, a callback `evaluated` that returns fedray.STOP ends a run" if key == "stop" else ""
            raise UserError(f"{key}: is a key of a sweep's file, next to its `base`; one run has none{more}")
        head, _, option = key.partition(".")
        if option and head in cls.model_fields:
            return f"`{head}: {{{option}: ...}}`"
        places = [MEANT[key]] if key in MEANT else []
        if not places and not (not above and find_nearest(key, cls.model_fields, 0.8)):
            places = [f"{name}.{key}" for name, section in PLAIN.items() if key in section.model_fields]
            places = places or [
                f"{name}.{key}"
                for name, (registry, *_) in COMPONENTS.items()
                if any(key in kind.model_fields for kind in registry.values())
            ]
        return " or ".join(repr(place.removeprefix(f"{above}.")) for place in places)

    def make_tags(self) -> dict[str, str]:
        """Return the tags by which MLflow's UI groups and filters runs."""
        return {
            "algorithm": self.algorithm.make_label(),
            "partition": self.partition.make_label(),
            "data": self.data.name,
            "model": self.model.name,
            "seed": str(self.seed),
        }

    def resolve(self) -> dict[str, Any]:
        """Return every key with its value, in JSON types, defaults included; `parse` of it gives an equal run."""
        return self.model_dump(mode="json")

    def pack(self) -> bytes:
        """Return the run for another process of the same call, which neither parses nor checks it again."""
        return pickle.dumps(self)

    @classmethod
    def unpack(cls, packed: bytes) -> "RunConfig":
        """Return what `pack` packed. Raises UserError if a class of the user's own cannot be imported here."""
        run: RunConfig = pickle.loads(packed)  # noqa: S301 (from the process that started this one)
        return run

    def make_identity(self, data_digest: str) -> dict[str, Any]:
        """Return everything that can change a number, in JSON types (`fedray.components.identity`)."""
        identity = {"numerics": NUMERICS, **self.list_identity_entries()}
        identity["data"]["digest"] = data_digest
        if self.channels_last:  # the default depends on model and device
            identity["training"] = {**identity.get("training", {}), "channels_last": True}
        for part in iter_parts(self):
            name = part.name if isinstance(part, Component) else type(part).__name__
            if revision := part.count_revisions():
                identity.setdefault("revisions", {})[name] = revision
            if ":" in name:
                identity.setdefault("sources", {})[name] = digest_source(part.section, name)
        self.refuse_stale()
        return identity

    def refuse_stale(self) -> None:
        """Raise UserError for a class of the user's own whose source is not that of the code that is loaded."""
        for part in iter_parts(self):
            if isinstance(part, Component) and part.source and digest_source(part.section, part.name) != part.source:
                raise UserError(
                    f"{part.section}: {part.name}, or a module that it imports, has changed since this Python imported "
                    "it; start Python anew, or call importlib.reload with each module that changed, then with that "
                    "of the class"
                )

    def count_revisions(self) -> int:
        """With a warm-up η_0 was the warm-up's first rate, for FedExP and control variates."""
        by_first = any(getattr(part, "variate_lr", "round") == "first" for part in iter_parts(self.algorithm))
        uses_first = isinstance(self.stepping, FedExP) or by_first
        return super().count_revisions() + (self.training.warmup > 0 and uses_first)

    def hash_cell(self, data_digest: str) -> str:
        """Return the cell's hash."""
        return hash_of(self.make_identity(data_digest))
