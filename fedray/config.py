"""What a run is: typed, validated, hashable. Unknown or conflicting keys are refused by name before anything starts."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError, field_serializer, field_validator, model_validator

from fedray.algorithms import Algorithm, algorithm
from fedray.algorithms.feddisco import Disco
from fedray.algorithms.fedexp import Extrapolation
from fedray.common.component import Component, describe
from fedray.common.errors import UserError
from fedray.common.identity import Run
from fedray.common.plugins import refuse_unreachable
from fedray.common.yaml_files import located_file
from fedray.datasets import data_source
from fedray.datasets.base import DataSource
from fedray.models import model_spec
from fedray.models.base import ModelSpec
from fedray.partitions import partition
from fedray.partitions.base import Partition
from fedray.sections import Clients, Evaluation, Runtime, Section, Training

NUMERICS = 2
"""Part of every cell's identity. Raised when the same configuration is meant to give other numbers than before."""


IDENTIFYING = ("name", "validation", "source", "revision")
"""What of the data section enters the identity beside the digest of the arrays."""


class RunConfig(Section):
    """One run: one configuration and one seed."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    seed: int = Field(0, ge=0, lt=2**32)
    data: DataSource
    partition: Partition
    clients: Clients = Clients()
    model: ModelSpec
    algorithm: Algorithm
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    runtime: Runtime = Runtime()

    @field_validator("data", mode="before")
    @classmethod
    def _data(cls, value: Any) -> DataSource:
        return data_source(value)

    @field_validator("partition", mode="before")
    @classmethod
    def _partition(cls, value: Any) -> Partition:
        return partition(value)

    @field_validator("model", mode="before")
    @classmethod
    def _model(cls, value: Any) -> ModelSpec:
        return model_spec(value)

    @field_validator("algorithm", mode="before")
    @classmethod
    def _algorithm(cls, value: Any) -> Algorithm:
        return algorithm(value)

    @field_serializer("data", "partition", "model", "algorithm")
    def _options(self, component: Component) -> dict[str, Any]:
        return component.options()

    @model_validator(mode="after")
    def _check(self) -> Self:
        cohorts = self.clients.cohorts
        if cohorts is not None and len(cohorts) < self.training.rounds:
            raise UserError(f"clients.cohorts: lists {len(cohorts)} rounds, training.rounds is {self.training.rounds}")
        if self.training.precision == "tf32" and self.runtime.torch_device != "cuda":
            raise UserError("training.precision: found tf32, which CPUs do not have; fp32 or bf16")
        probes = self.evaluation.probes
        if self.runtime.backend == "ray":
            for component in (self.data, self.partition, self.model, self.algorithm, *probes):
                refuse_unreachable(component)
        self.algorithm.check(self.model)
        if self.algorithm.needs_everyone:
            self._refuse_absence()
        if self.extrapolation and self.algorithm.shares == "none":
            raise UserError(f"training.server_step: fedexp scales the average; {self.algorithm.name} has none")
        if self.evaluation.train and self.algorithm.keeps != "none":
            raise UserError(
                f"evaluation.train: tests the global model; {self.algorithm.name} has none that could be tested"
            )
        for probe in probes:
            probe.check(self.algorithm)
        return self

    def _refuse_absence(self) -> None:
        """Raise UserError where a client could be absent from a round."""
        needs = f"{self.algorithm.name} needs all {self.clients.total} clients in every round"
        if not self.clients.everyone:
            key, found = "cohorts", "rounds with fewer"
            if self.clients.cohorts is None:
                key, found = "per_round", str(self.clients.per_round)
            raise UserError(f"clients.{key}: found {found}; {needs}")
        if self.training.on_divergence == "drop":
            raise UserError(f"training.on_divergence: found drop; {needs}")

    @property
    def disco(self) -> Disco | None:
        """FedDisco's weights, where the method or `training.aggregation` asks for them."""
        if isinstance(self.algorithm, Disco):
            return self.algorithm
        return self.training.disco if self.training.aggregation == "disco" else None

    @property
    def extrapolation(self) -> Extrapolation | None:
        """FedExP's step, where the method or `training.server_step` asks for it."""
        if isinstance(self.algorithm, Extrapolation):
            return self.algorithm
        return self.training.fedexp if self.training.server_step == "fedexp" else None

    @property
    def keeps_states(self) -> bool:
        """`runtime.keep_states`; where it is not given whether the personal models lie in the clients' states."""
        if self.runtime.keep_states is not None:
            return self.runtime.keep_states
        return self.algorithm.keeps != "none" or self.algorithm.personal == "kept"

    @property
    def channels_last(self) -> bool:
        """`training.channels_last`; where it is not given what is faster on the device."""
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

    def tags(self) -> dict[str, str]:
        """What runs are grouped and filtered by in MLflow's UI."""
        return {
            "algorithm": self.algorithm.label(),
            "partition": self.partition.label(),
            "data": self.data.name,
            "model": self.model.name,
            "seed": str(self.seed),
        }

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, defaults filled in, JSON types only; `parse` of it gives an equal run."""
        return self.model_dump(mode="json")

    def identity(self, data_digest: str) -> dict[str, Any]:
        """What can change a number, and nothing else (`fedray.common.identity`).

        Scheduling, backend, number of actors, checkpointing and paths are left out. The data, an initial state_dict
        and the source of plug-ins enter by digest.
        """
        whole = super().identity_entries(self.resolved())
        whole["data"] = {key: whole["data"][key] for key in IDENTIFYING if key in whole["data"]}
        whole["data"]["digest"] = data_digest
        if self.channels_last:  # a key that came later, whose default depends on model and device
            whole["training"]["channels_last"] = True
        self._revise(whole)
        if self.model.init is not None:
            whole["model"]["init"] = _file_digest("model.init", self.model.init)
        return {"numerics": NUMERICS, **whole}

    def _revise(self, whole: dict[str, Any]) -> None:
        """Enter the revisions of method and probes in this run."""
        training, personal = self.training, self.evaluation.personal
        run = Run(
            self.model.tracks_statistics,
            personal is not None and any(personal.tuned),
            training.clip_norm is None and training.weight_decay == training.momentum == 0,
            training.lr_decay_within != 1,
        )
        if revision := self.algorithm.revision_in(run):
            whole["algorithm"]["revision"] = revision
        for probe in self.evaluation.probes:
            if revision := probe.revision_in(run):
                own = whole["evaluation"].setdefault("probe_sources", {})
                own.setdefault(probe.name, {})["revision"] = revision

    def cell(self, data_digest: str) -> str:
        """The cell's hash: 16 hexadecimal digits of the SHA-256 of `identity`."""
        text = json.dumps(self.identity(data_digest), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file_digest(key: str, path: str) -> str:
    try:
        return hashlib.sha256(located_file(key, path).read_bytes()).hexdigest()
    except FileNotFoundError:
        raise UserError(f"{key}: {path} does not exist") from None
    except OSError as error:
        raise UserError(f"{key}: {path} cannot be read: {error.strerror}") from None
