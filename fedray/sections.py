"""The sections of a run's configuration that are not chosen by name: clients, training, evaluation and runtime."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from fedray.algorithms.feddisco import FedDisco
from fedray.algorithms.fedexp import FedExP
from fedray.algorithms.local_optimizers import AdamWOptions, MuonOptions
from fedray.common.component import Checked
from fedray.common.errors import UserError
from fedray.common.identity import EXCLUDED
from fedray.common.options import Allowed
from fedray.common.schedule import Schedule
from fedray.evaluation import registry
from fedray.evaluation.probe import Probe
from fedray.runs.last_rounds import last_rounds

SMALLEST_SHARE = 0.0001
"""The smallest part of a CPU or GPU that Ray can hand out."""


class Section(Checked):
    """Base of the sections."""


class Clients(Section):
    """The clients, and how many take part in a round."""

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

    unseen: int = Field(
        0,
        ge=0,
        le=10**7,
        description="further clients, the last ones of the partition, that never train; each is tested as a newcomer "
        "when personal models are (`evaluation.personal`)",
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
    def dealt(self) -> int:
        """Return the number of clients that are dealt samples: those that train, and the unseen ones."""
        return self.total + self.unseen

    @property
    def cohort_size(self) -> int:
        """Return M as a number: max(floor(fraction x N), 1) for a fraction."""
        if isinstance(self.per_round, float):
            return max(int(self.per_round * self.total + 1e-9), 1)
        return self.per_round

    @property
    def everyone(self) -> bool:
        """True if all clients take part in every round (clients without samples never do)."""
        if self.cohorts is None:
            return self.cohort_size == self.total
        return all(len(ids) == self.total for ids in self.cohorts)


class Training(Schedule, Section):
    """The local optimiser and the server's averaging. lr of round t (from 0) is lr x lr_decay^t, unless lr_schedule or
    warmup say otherwise."""

    local_epochs: int | None = Field(5, gt=0, le=10**6, description="passes over the client's shard per round")
    local_steps: int | None = Field(None, gt=0, le=10**9, description="mini-batches per round, instead of local_epochs")
    batch_size: Annotated[int, Field(gt=0)] | Literal["full"] = Field(
        50, description="samples per batch, or `full` for the whole shard"
    )
    shuffle: bool = Field(True, description="reshuffle the shard every epoch")
    momentum: float = Field(0.0, ge=0, lt=1, description="m: local momentum; its buffer starts at 0 every round")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    clip_norm: float | None = Field(None, gt=0, description="C: largest norm of a direction, before weight decay")
    clip_scope: Literal["direction", "code"] = Field(
        "direction",
        description="the vector that C bounds: q, or q without the α y or μ y that FL-Simulator's code adds as weight "
        "decay (D-12)",
    )
    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False, description="η_g: scales the averaged update only")
    aggregation: Literal["uniform", "samples", "batches", "feddisco"] = Field(
        "uniform",
        description="π: weights of the cohort's average, equal, proportional to n_i, to the whole batches in n_i "
        "(FedGELA's code, D-42), or FedDisco's",
    )
    feddisco: Annotated[FedDisco, Allowed("options")] = Field(
        FedDisco(), description="a, b and metric of `aggregation: feddisco`"
    )
    server_step: Literal["average", "fedexp"] = Field(
        "average", description="fedexp: FedExP's step along the averaged update"
    )
    fedexp: Annotated[FedExP, Allowed("options")] = Field(
        FedExP(), description="epsilon, epsilon_scale and test of `server_step: fedexp`"
    )
    on_divergence: Literal["stop", "drop"] = Field(
        "stop",
        description="when a client's loss, upload or state is not finite, or too large to be summed: end the "
        "run as diverged, or repeat the round without it, as if it had not been drawn "
        "(`dropped_clients` counts them)",
    )

    lr_decay_within: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor on η per local epoch within a round (FedACG's code, D-104); methods that divide by K_i η_t "
        "or a sum of rates still use the round's η_t",
    )
    weight_decay_on: Literal["all", "weights"] = Field(
        "all", description="weights: parameters called bias are not decayed (FedRep's code, D-115)"
    )
    nominal_steps: Literal[False, "own", "client0"] = Field(
        False,
        description="number that SCAFFOLD, FedDC, FedCM, FedTOGA, FedWMSAM and methods built on them divide by "
        "instead of K_i. own: epochs x n_i / batch size, whole or not; client0: the same with n_0 for every client, as "
        "FL-Simulator (D-23). FedMoSWA, FedNova and Scaffnew count the steps made",
    )
    last_batch: Literal["keep", "drop"] = Field(
        "keep",
        description="drop: an epoch's last batch is left out if it is smaller, unless it is the only one (FedGELA's "
        "code, D-120)",
    )

    relaxed_start: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="β of FedInit (Sun et al., NeurIPS 2023): a client starts at x + β (x - its own last local model), "
        "with x⁰ before the first one, and this start is the x in all its formulas (FL-Simulator's use_RI, D-128)",
        json_schema_extra={"paper": {"FL-Simulator": 0.1}},
    )
    relaxed_average: Literal["updates", "models"] = Field(
        "updates",
        description="with relaxed_start, U is the mean of the updates from each client's start, or of y_K - x (D-128)",
    )

    optimizer: Literal["sgd", "adamw", "muon"] = Field(
        "sgd",
        description="the local optimiser. adamw and muon take the clipped direction, and decay weights apart from it; "
        "`momentum` is sgd's",
    )
    adamw: Annotated[AdamWOptions, Allowed("options")] = Field(
        AdamWOptions(), description="betas, eps and state of `optimizer: adamw`"
    )
    muon: Annotated[MuonOptions, Allowed("options")] = Field(
        MuonOptions(), description="momentum, nesterov, steps, lr_factor and matrices of `optimizer: muon`"
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32",
        description="precision of matrix products and convolutions; parameters, gradients and sums are always "
        "float32. tf32: CUDA's. bf16 on a CPU needs avx512_bf16 or AMX; without, it is about 8 times slower than fp32",
    )
    channels_last: Annotated[bool | None, EXCLUDED] = Field(
        None,
        description="images with the channels innermost, for convolutional models; default: on a CPU for models "
        "that this was measured to speed up (docs/performance.md), on a GPU with tf32 and bf16",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_steps_or_epochs(cls, options: Any) -> Any:
        if not isinstance(options, Mapping) or options.get("local_epochs") is not None:
            return options
        others = {key: value for key, value in options.items() if key != "local_epochs"}
        return others if others.get("local_steps") is None else {**others, "local_epochs": None}

    @model_validator(mode="before")
    @classmethod
    def _refuse_old_words(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            if "disco" in value:
                raise UserError("training.disco: the key is training.feddisco")
            if value.get("aggregation") == "disco":
                raise UserError("training.aggregation: found disco; the word is feddisco")
            if value.get("nominal_steps") is True:
                raise UserError("training.nominal_steps: found true; the word is own")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.local_epochs is not None and self.local_steps is not None:
            raise UserError("training.local_steps: give either local_steps or local_epochs, not both")
        if self.aggregation != "feddisco" and self.feddisco != FedDisco():
            raise UserError(f"training.feddisco: has options, but training.aggregation is {self.aggregation}")
        if self.server_step != "fedexp" and self.fedexp != FedExP():
            raise UserError(f"training.fedexp: has options, but training.server_step is {self.server_step}")
        if self.relaxed_average == "models" and not self.relaxed_start:
            raise UserError("training.relaxed_average: found models, but training.relaxed_start is 0")
        self._check_optimizer()
        return self

    def _check_optimizer(self) -> None:
        """Raise UserError for settings that the local optimiser does not have."""
        for key, fresh in (("adamw", AdamWOptions()), ("muon", MuonOptions())):
            if self.optimizer != key and getattr(self, key) != fresh:
                raise UserError(f"training.{key}: has options, but training.optimizer is {self.optimizer}")
        if self.optimizer != "sgd" and self.momentum:
            own = {"adamw": "adamw.betas", "muon": "muon.momentum"}[self.optimizer]
            raise UserError(f"training.momentum: found {self.momentum}; {self.optimizer} has training.{own} instead")
        if self.optimizer != "sgd" and self.clip_scope == "code":
            raise UserError(f"training.clip_scope: found code, which is sgd's; training.optimizer is {self.optimizer}")

    @property
    def epochs(self) -> int:
        """`local_epochs`; 0 if `local_steps` is given."""
        return self.local_epochs or 0

    def steps(self, samples: int) -> int:
        """Return K_i: the mini-batch steps in a round of a client with this many samples."""
        if samples == 0:
            return 0
        if self.local_steps is not None:
            return self.local_steps
        return self.epochs * self.steps_per_epoch(samples)

    def counted_steps(self, samples: int, of_client_0: int) -> float:
        """Return K_i as methods divide by it: the steps made, or `nominal_steps`.

        Args:
            samples: of the client.
            of_client_0: samples of client 0.
        """
        if not self.nominal_steps or self.local_steps is not None or self.batch_size == "full":
            return self.steps(samples)
        return self.epochs * (samples if self.nominal_steps == "own" else of_client_0) / self.batch_size

    def steps_per_epoch(self, samples: int) -> int:
        """Return the mini-batch steps of one pass over this many samples; at least one, even if `last_batch` drops
        it.
        """
        size = samples if self.batch_size == "full" else self.batch_size
        return max(samples // size, 1) if self.last_batch == "drop" else -(-samples // size)


class Personal(Section):
    """Personal models, each tested on its client's own test samples, and always in the last round."""

    epochs: Annotated[int | tuple[int, ...], Allowed("integer in [0, ∞), or a list of them")] = Field(
        10, description="epochs of fine-tuning, for methods whose personal model is fine-tuned; or a list"
    )
    every: int = Field(50, gt=0, description="rounds between personal evaluations")
    split: Literal["share", "disjoint"] = Field(
        "disjoint",
        description="own test samples: disjoint parts of the test set (FedGELA), or drawn with the shard's "
        "class shares (FedSOL)",
    )

    train: bool = Field(
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
        """Return the epochs of fine-tuning, ascending."""
        return (self.epochs,) if isinstance(self.epochs, int) else tuple(sorted(self.epochs))


class Evaluation(Section):
    """When the global model is tested, and other measurements. The last round is always evaluated."""

    every: int = Field(10, gt=0, description="rounds between evaluations")
    last: int = Field(
        10, gt=0, description="number of final rounds that are all evaluated (every round of a shorter run)"
    )
    train: bool = Field(False, description="also log the accuracy on the whole training set")
    auc: bool = Field(
        False, description="also log `test_auc`, the area under the ROC curve of each class against the rest"
    )
    personal: Personal | None = Field(
        None, description="also evaluate personal models: `{}` for the defaults, or its keys"
    )
    probes: tuple[Probe, ...] = Field(
        (),
        description=f"further measurements in evaluated rounds (docs/probes.md): {', '.join(registry.PROBES)}, or "
        "your own as `package.module:Class`; with options `{name: package.module:Class, k: 3}`",
    )

    def is_due(self, round: int, rounds: int) -> bool:
        """Return True if a round, from 1, of this many is evaluated."""
        return round % self.every == 0 or round > rounds - self.last or self.is_personal_due(round, rounds)

    def is_personal_due(self, round: int, rounds: int) -> bool:
        """Return True if personal models are tested after a round, from 1, of this many."""
        return self.personal is not None and (round % self.personal.every == 0 or round >= rounds)

    def averaged(self, rounds: int, personal: bool = False) -> tuple[int, ...]:
        """Return the rounds whose tests `last10_*` averages; with `personal`, the tests of personal models."""
        is_due = self.is_personal_due if personal else self.is_due
        return tuple(t for t in last_rounds(rounds) if is_due(t, rounds))

    @field_validator("probes", mode="before")
    @classmethod
    def _probes(cls, value: Any) -> Any:
        return registry.make_probes(value) if isinstance(value, list | tuple) else value

    @field_serializer("probes")
    def _written(self, probes: tuple[Probe, ...]) -> list[Any]:
        return [probe.options() if type(probe).model_fields else probe.name for probe in probes]


class Runtime(Section):
    """Where a run computes. Only `device`, `threads` and, on a GPU, `deterministic` and `cuda_graph` can change the
    last bits of a number, so only they identify a cell."""

    backend: Annotated[Literal["inline", "ray"], EXCLUDED] = Field(
        "ray", description="ray: use Ray for several processes, a GPU or a cluster; inline: never"
    )
    actors: Annotated[Annotated[int, Field(gt=0)] | Literal["auto"], EXCLUDED] = Field(
        1,
        description="processes that train clients, per run; 1: the run's own. auto: as many as fit when a "
        "cell starts, shared with the remaining cells",
    )
    cpus_per_actor: Annotated[float, EXCLUDED] = Field(1, ge=0)
    gpus_per_actor: Annotated[
        Annotated[float, Field(ge=0)] | Literal["auto"], EXCLUDED, Allowed("a fraction in [0, 1], whole GPUs or `auto`")
    ] = Field(
        0.0, description="fractions share a GPU; auto: as many actors per GPU as the measured memory of one allows"
    )
    threads: int = Field(1, gt=0, le=1024, description="threads of each process that computes")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: cuda if gpus_per_actor > 0, otherwise cpu"
    )
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
        description="keep the clients' states of a finished cell; default: only if they hold its personal "
        "models. The model is always kept",
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

    def identity_entries(self) -> dict[str, Any]:
        found = super().identity_entries()
        if self.torch_device == "cuda":
            return found | {"device": "cuda"}
        return {key: value for key, value in found.items() if key == "threads"}

    @property
    def actor_count(self) -> int:
        """Return the number of actors; one for `auto`, until a cell starts (`fedray.cluster.allocation`)."""
        return 1 if self.actors == "auto" else self.actors

    @property
    def gpus(self) -> float:
        """Return the GPUs that an actor requests; a whole one for `auto`, until it is measured
        (`fedray.cluster.gpu_sharing`).
        """
        return 1.0 if self.gpus_per_actor == "auto" else self.gpus_per_actor

    @property
    def gpu_share(self) -> float:
        """Return the part of its GPU that a process may use: its fraction; 1 without one, and for several GPUs."""
        return min(self.gpus or 1.0, 1.0)

    @property
    def inline(self) -> "Runtime":
        """Return the same with backend inline, which measures nothing for `gpus_per_actor: auto`."""
        return self.model_copy(update={"backend": "inline", "gpus_per_actor": self.gpus})

    @property
    def torch_device(self) -> str:
        """`cpu` or `cuda`."""
        if self.device == "auto":
            return "cuda" if self.gpus > 0 else "cpu"
        return self.device
