"""The sections of a run's configuration that are not chosen by name: clients, training, evaluation and runtime."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from fedray.algorithms.feddisco import Disco
from fedray.algorithms.fedexp import Extrapolation
from fedray.common.component import Checked
from fedray.common.errors import UserError
from fedray.common.identity import EXCLUDED, Later
from fedray.common.options import Allowed
from fedray.evaluation import registry
from fedray.evaluation.probe import Probe

SMALLEST_SHARE = 0.0001
"""The smallest part of a CPU or GPU that Ray can hand out."""


class Section(Checked):
    """Base of the sections."""


class Clients(Section):
    """Who exists and who takes part in a round."""

    total: int = Field(100, gt=0, le=10**7, description="N: number of clients")
    per_round: Annotated[int | float, Allowed("integer in (0, total] or a fraction in (0.0, 1.0]")] = Field(
        10, gt=0, description="M: a number, or a fraction of total (0.1; 1.0 is everyone)"
    )
    sampling: Literal["fixed", "bernoulli"] = Field(
        "fixed", description="fixed: exactly M without replacement; bernoulli: each client with probability M/N"
    )
    cohorts: tuple[tuple[int, ...], ...] | None = Field(
        None, description="explicit client ids per round instead of sampling (availability traces, replays)"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.per_round, float) and self.per_round > 1:
            raise UserError(
                f"clients.per_round: found {self.per_round}; a fraction is at most 1.0, "
                "a number of clients is written without a point"
            )
        if self.per_round > self.total:
            raise UserError(f"clients.per_round: found {self.per_round}; clients.total is only {self.total}")
        for t, ids in enumerate(self.cohorts or ()):
            if not ids or len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= self.total:
                raise UserError(
                    f"clients.cohorts: round {t} lists {list(ids)[:5]}; "
                    f"different ids in 0..{self.total - 1} are required, at least one"
                )
        return self

    @property
    def cohort_size(self) -> int:
        """M as a number: max(floor(fraction x N), 1) for a fraction."""
        if isinstance(self.per_round, float):
            return max(int(self.per_round * self.total + 1e-9), 1)
        return self.per_round

    @property
    def everyone(self) -> bool:
        """Whether all clients take part in every round (those without samples never do)."""
        if self.cohorts is None:
            return self.cohort_size == self.total
        return all(len(ids) == self.total for ids in self.cohorts)


class Training(Section):
    """The local optimiser and the server's averaging. lr of round t (from 0) is lr x lr_decay^t."""

    rounds: int = Field(100, gt=0, le=10**7)
    local_epochs: int | None = Field(
        None, gt=0, le=10**6, description="passes over the client's shard per round; default 5"
    )
    local_steps: int | None = Field(None, gt=0, le=10**9, description="mini-batches per round, instead of local_epochs")
    batch_size: Annotated[int, Field(gt=0)] | Literal["full"] = Field(
        50, description="samples per batch, or `full` for the whole shard"
    )
    shuffle: bool = Field(True, description="reshuffle the shard every epoch")
    lr: float = Field(0.1, gt=0, allow_inf_nan=False, description="η: local learning rate of the first round")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor per round")
    momentum: float = Field(0.0, ge=0, lt=1, description="m: local momentum; its buffer starts at 0 every round")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    clip_norm: float | None = Field(None, gt=0, description="C: largest norm of a direction, before weight decay")
    clip_scope: Literal["direction", "code"] = Field(
        "direction",
        description="what C bounds: q, or q less the α y or μ y that FL-Simulator's code adds as weight decay (D-12)",
    )
    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False, description="η_g: scales the averaged update only")
    aggregation: Literal["uniform", "samples", "batches", "disco"] = Field(
        "uniform",
        description="π: weights of the cohort's average, equal, proportional to n_i, to the whole batches in n_i "
        "(FedGELA's code, D-42), or by how balanced the client's labels are (`disco`, whose options are feddisco's)",
    )
    disco: Annotated[Disco, Later()] = Field(Disco(), description="options of `aggregation: disco`: a, b, metric")
    server_step: Annotated[Literal["average", "fedexp"], Later()] = Field(
        "average", description="fedexp: the averaged update is extrapolated (`fedexp`, whose options are fedexp's)"
    )
    fedexp: Annotated[Extrapolation, Later()] = Field(
        Extrapolation(), description="options of `server_step: fedexp`: epsilon, epsilon_scale, test"
    )
    on_divergence: Literal["stop", "drop"] = Field(
        "stop",
        description="when a client's loss, upload or state is not finite, or too large to be summed: end the "
        "run as diverged, or make the round again without it, as if it had not been drawn "
        "(`dropped_clients` counts them)",
    )

    lr_decay_within: Annotated[float, Later()] = Field(
        1.0,
        gt=0,
        le=1,
        description="factor on η per local epoch within a round (FedACG's code, D-104); methods that divide by K_i η_t "
        "or a sum of rates take the round's η_t all the same",
    )
    weight_decay_on: Annotated[Literal["all", "weights"], Later()] = Field(
        "all", description="weights: parameters called bias are not decayed (FedRep's code, D-115)"
    )
    nominal_steps: Annotated[bool, Later()] = Field(
        False,
        description="SCAFFOLD, FedDC, FedCM, FedTOGA, FedWMSAM and what is built on them divide by epochs x n_i / "
        "batch size, whole or not, in place of K_i (FL-Simulator, D-23); FedMoSWA, FedNova and Scaffnew count the "
        "steps made",
    )
    last_batch: Annotated[Literal["keep", "drop"], Later()] = Field(
        "keep",
        description="drop: an epoch's last batch is left out where it is smaller, but not the only one (FedGELA's "
        "code, D-120)",
    )

    precision: Annotated[Literal["fp32", "tf32", "bf16"], Later()] = Field(
        "fp32",
        description="of matrix products and convolutions; parameters, gradients and sums are float32 always. "
        "tf32: CUDA's",
    )
    channels_last: Annotated[bool | None, EXCLUDED] = Field(
        None,
        description="images with the channels innermost, for convolutional models; default: on a CPU for models "
        "that this was measured to speed up (docs/performance.md), on a GPU with tf32 and bf16",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.local_epochs is not None and self.local_steps is not None:
            raise UserError("training.local_steps: give either local_steps or local_epochs, not both")
        if self.aggregation != "disco" and self.disco != Disco():
            raise UserError(f"training.disco: has options, but training.aggregation is {self.aggregation}")
        if self.server_step != "fedexp" and self.fedexp != Extrapolation():
            raise UserError(f"training.fedexp: has options, but training.server_step is {self.server_step}")
        return self

    def identity_entries(self, written: Mapping[str, Any]) -> dict[str, Any]:
        return super().identity_entries(written) | {"local_epochs": None if self.local_steps else self.epochs}

    @property
    def epochs(self) -> int:
        """local_epochs, 5 where neither epochs nor steps are given."""
        return self.local_epochs or 5

    def steps(self, samples: int) -> int:
        """K_i: the mini-batch steps a client with this many samples makes in a round."""
        if samples == 0:
            return 0
        if self.local_steps is not None:
            return self.local_steps
        return self.epochs * self.steps_per_epoch(samples)

    def counted_steps(self, samples: int) -> float:
        """K_i where a method divides by it: the steps made, or `nominal_steps`."""
        if not self.nominal_steps or self.local_steps is not None or self.batch_size == "full":
            return self.steps(samples)
        return self.epochs * samples / self.batch_size

    def steps_per_epoch(self, samples: int) -> int:
        """The mini-batch steps of one pass over this many samples; at least one, whatever `last_batch` drops."""
        size = samples if self.batch_size == "full" else self.batch_size
        return max(samples // size, 1) if self.last_batch == "drop" else -(-samples // size)


class Personal(Section):
    """Personal models, each tested on its client's own test samples. In the last round always."""

    epochs: Annotated[int | tuple[int, ...], Allowed("integer in [0, ∞), or a list of them")] = Field(
        10, description="epochs of fine-tuning, for methods whose personal model is a fine-tuned one; or a list"
    )
    every: int = Field(50, gt=0, description="rounds between personal evaluations")
    split: Literal["share", "disjoint"] = Field(
        "disjoint",
        description="own test samples: disjoint parts of the test set (FedGELA), or drawn with the shard's "
        "class shares (FedSOL)",
    )

    train: Annotated[bool, Later()] = Field(
        False, description="also test each personal model on its client's own training samples, not augmented"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        listed = self.tuned
        if not listed or min(listed) < 0 or len(set(listed)) < len(listed):
            raise UserError(f"evaluation.personal.epochs: found {listed}; 0 or more, or a list of different ones")
        return self

    @property
    def tuned(self) -> tuple[int, ...]:
        """The epochs of fine-tuning, ascending."""
        return (self.epochs,) if isinstance(self.epochs, int) else tuple(sorted(self.epochs))


class Evaluation(Section):
    """When the global model is tested, and what else is looked at. The last round always is."""

    every: int = Field(10, gt=0, description="rounds between evaluations")
    last: int = Field(1, gt=0, description="that many rounds at the end are all evaluated")
    train: bool = Field(False, description="also the accuracy on the whole training set")
    personal: Personal | None = Field(None, description="also personal models: `{}`, or its keys")
    probes: tuple[Probe, ...] = Field(
        (),
        description=f"what else is measured in evaluated rounds (docs/probes.md): {', '.join(registry.PROBES)}, or "
        "your own as `package.module:Class`; with options `{name: package.module:Class, k: 3}`",
    )

    def is_due(self, round: int, rounds: int) -> bool:
        """Whether a round, from 1, of so many is evaluated."""
        return round % self.every == 0 or round > rounds - self.last or self.is_personal_due(round, rounds)

    def is_personal_due(self, round: int, rounds: int) -> bool:
        """Whether personal models are tested after a round, from 1, of so many."""
        return self.personal is not None and (round % self.personal.every == 0 or round >= rounds)

    @field_validator("probes", mode="before")
    @classmethod
    def _probes(cls, value: Any) -> Any:
        return registry.probes(value) if isinstance(value, list | tuple) else value

    @field_serializer("probes")
    def _written(self, probes: tuple[Probe, ...]) -> list[Any]:
        return [probe.options() if type(probe).model_fields else probe.name for probe in probes]

    def identity_entries(self, written: Mapping[str, Any]) -> dict[str, Any]:
        found = super().identity_entries({key: value for key, value in written.items() if key != "probes"})
        found["probes"] = [probe.name for probe in self.probes]
        own = {
            probe.name: entries
            for probe in self.probes
            if (entries := {k: v for k, v in probe.identity_entries(probe.options()).items() if k != "name"})
        }
        return found | ({"probe_sources": own} if own else {})


class Runtime(Section):
    """Where it runs. Of these only `device`, `threads`, and on a GPU `deterministic` and `cuda_graph`, can change a
    number's last bits, so only they identify a cell."""

    backend: Annotated[Literal["inline", "ray"], EXCLUDED] = Field(
        "ray", description="ray: on Ray where more than one process, a GPU or a cluster is used; inline: never"
    )
    actors: Annotated[Annotated[int, Field(gt=0)] | Literal["auto"], EXCLUDED] = Field(
        1,
        description="processes that train clients, per run; 1: the run's own. auto: as many as there is room for when "
        "a cell starts, shared with the cells that are left",
    )
    cpus_per_actor: Annotated[float, EXCLUDED] = Field(1, ge=0)
    gpus_per_actor: Annotated[
        Annotated[float, Field(ge=0)] | Literal["auto"], EXCLUDED, Allowed("a fraction in [0, 1], whole GPUs or `auto`")
    ] = Field(0.0, description="fractions share a GPU; auto: as many actors a GPU as the measured memory of one allows")
    threads: int = Field(1, gt=0, le=1024, description="threads of each process that computes")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where gpus_per_actor > 0, else cpu")
    deterministic: bool = Field(
        True, description="on a GPU, only kernels that give the same bits every time; false may be faster"
    )
    cuda_graph: bool = Field(
        False,
        description="on a GPU, gradients of the cross-entropy are recorded and replayed as CUDA graphs: small "
        "models wait less for Python",
    )
    checkpoint_every: Annotated[int, EXCLUDED] = Field(50, gt=0, description="rounds between checkpoints")
    keep_states: Annotated[bool | None, EXCLUDED] = Field(
        None,
        description="keep the clients' states of a finished cell; default: where its personal models lie in them. "
        "The model is always kept",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        gpus = self.gpus_per_actor
        if gpus != "auto" and gpus > 1 and gpus != int(gpus):
            raise UserError(f"runtime.gpus_per_actor: found {gpus}; auto, a fraction below 1 or whole GPUs")
        if gpus == "auto" and self.backend == "inline":
            raise UserError("runtime.gpus_per_actor: found auto; with backend inline there are no actors")
        if gpus == "auto" and self.device == "cpu":
            raise UserError("runtime.gpus_per_actor: found auto with device cpu, which takes no memory of a GPU")
        if self.backend == "ray" and self.device == "cuda" and gpus == 0:
            raise UserError("runtime.device: found cuda with gpus_per_actor 0; Ray hides GPUs that are not asked for")
        for key, value in (("cpus_per_actor", self.cpus_per_actor), ("gpus_per_actor", gpus)):
            if isinstance(value, float | int) and 0 < value < SMALLEST_SHARE:
                raise UserError(f"runtime.{key}: found {value}; Ray counts in units of {SMALLEST_SHARE}")
        if gpus == 0 and self.cpus_per_actor == 0:
            raise UserError("runtime.cpus_per_actor: found 0; an actor without a GPU needs some CPU")
        if self.cuda_graph and self.torch_device == "cpu":
            raise UserError("runtime.cuda_graph: found true on a CPU, which has no CUDA graphs")
        return self

    def identity_entries(self, written: Mapping[str, Any]) -> dict[str, Any]:
        found = super().identity_entries(written) | {"device": self.torch_device}
        on_gpu = ("deterministic", "cuda_graph")
        return {key: value for key, value in found.items() if self.torch_device == "cuda" or key not in on_gpu}

    @property
    def actor_count(self) -> int:
        """How many actors: of `auto` one, until a cell starts (`fedray.cluster.room`)."""
        return 1 if self.actors == "auto" else self.actors

    @property
    def gpus(self) -> float:
        """What one actor asks for: of `auto` a whole one, until it is measured (`fedray.cluster.gpu_sharing`)."""
        return 1.0 if self.gpus_per_actor == "auto" else self.gpus_per_actor

    @property
    def inline(self) -> "Runtime":
        """The same with backend inline, where nothing is measured for `gpus_per_actor: auto`."""
        return self.model_copy(update={"backend": "inline", "gpus_per_actor": self.gpus})

    @property
    def torch_device(self) -> str:
        """`cpu` or `cuda`."""
        if self.device == "auto":
            return "cuda" if self.gpus > 0 else "cpu"
        return self.device
