"""`training`: the local optimiser and the server's averaging."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedray.algorithms.feddisco import FedDisco
from fedray.algorithms.fedexp import FedExP
from fedray.algorithms.local_optimizers import AdamWOptions, MuonOptions
from fedray.common.errors import UserError
from fedray.components.base import Allowed, Checked, option
from fedray.components.identity import EXCLUDED


class LrStep(Checked):
    """`lr_schedule: step`: the rate is multiplied by `factor` after every `every` rounds."""

    every: int = Field(gt=0, le=10**7, description="rounds between two drops, counted from the end of the warm-up")
    factor: float = Field(0.1, gt=0, le=1, description="factor of each drop")


class Schedule(Checked):
    """Number of rounds, and η_t of each."""

    rounds: int = Field(100, gt=0, le=10**7)
    lr: float = Field(
        0.1, gt=0, allow_inf_nan=False, description="η: local learning rate of the first round, after a `warmup`"
    )
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor per round")
    lr_schedule: Literal["exponential", "cosine", "step"] = Field(
        "exponential",
        description="η_t of the T rounds after the warm-up, t from 0: η lr_decay^t; cosine: η (1 + cos(π t/T))/2, "
        "which begins with η and ends above 0; step: `lr_step`",
    )
    lr_step: Annotated[LrStep | None, Allowed("options")] = Field(
        None, description="every and factor of `lr_schedule: step`"
    )
    warmup: int = Field(
        0, ge=0, description="W: rounds before the schedule, in which the rate grows: η (t + 1)/(W + 1), t from 0"
    )

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.lr_schedule != "exponential" and self.lr_decay != 1:
            raise UserError(
                f"training.lr_decay: found {self.lr_decay}; it is the exponential schedule's, and "
                f"training.lr_schedule is {self.lr_schedule}"
            )
        if self.lr_schedule == "step" and self.lr_step is None:
            raise UserError("training.lr_step: lr_schedule step needs it: {every: ROUNDS, factor: 0.1}")
        if self.lr_schedule != "step" and self.lr_step is not None:
            raise UserError(f"training.lr_step: has options, but training.lr_schedule is {self.lr_schedule}")
        if self.warmup >= self.rounds:
            raise UserError(f"training.warmup: found {self.warmup}; training.rounds is only {self.rounds}")
        return self

    def compute_lr(self, t: int) -> float:
        """Return η_t of round t, from 0."""
        if t < self.warmup:
            return self.lr * (t + 1) / (self.warmup + 1)
        t -= self.warmup
        if self.lr_schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * t / (self.rounds - self.warmup))) / 2
        if self.lr_step is not None:
            factor: float = self.lr_step.factor ** (t // self.lr_step.every)
            return self.lr * factor
        decay: float = self.lr_decay**t
        return self.lr * decay

    def compute_lr_change(self, t: int) -> float:
        """Return η_{t+1}/η_t; `lr_decay` itself with the exponential schedule."""
        if self.lr_schedule == "exponential" and t >= self.warmup:
            return self.lr_decay
        now = self.compute_lr(t)
        return self.compute_lr(t + 1) / now if now else 1.0  # a rate below the smallest float is 0, and stays


class Training(Schedule):
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
        "(FedGELA's code, D-42; with `batch_size: full` to n_i), or FedDisco's",
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
        "FL-Simulator (D-23). FedMoSWA and FedNova count the steps made",
    )
    last_batch: Literal["keep", "drop"] = Field(
        "keep",
        description="drop: an epoch's last batch is left out if it is smaller, unless it is the only one (FedGELA's "
        "code, D-120)",
    )

    relaxed_start: float = option(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="β of FedInit (Sun et al., NeurIPS 2023): a client starts at x + β (x - its own last local model), "
        "with x⁰ before the first one, and this start is the x in all its formulas (FL-Simulator's use_RI, D-128)",
        paper={"FL-Simulator": 0.1},
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
        "that this was measured to speed up, on a GPU with tf32 and bf16",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_steps_or_epochs(cls, options: Any) -> Any:
        if not isinstance(options, Mapping) or options.get("local_epochs") is not None:
            return options
        others = {key: value for key, value in options.items() if key != "local_epochs"}
        return others if others.get("local_steps") is None else {**others, "local_epochs": None}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.local_epochs is not None and self.local_steps is not None:
            raise UserError("training.local_steps: give either local_steps or local_epochs, not both")
        for key, chosen in (
            ("feddisco", "aggregation"),
            ("fedexp", "server_step"),
            ("adamw", "optimizer"),
            ("muon", "optimizer"),
        ):
            options, other = getattr(self, key), getattr(self, chosen)
            if other != key and options != type(options)():
                raise UserError(f"training.{key}: has options, but training.{chosen} is {other}")
        if self.relaxed_average == "models" and not self.relaxed_start:
            raise UserError("training.relaxed_average: found models, but training.relaxed_start is 0")
        if self.optimizer != "sgd" and self.momentum:
            own = {"adamw": "adamw.betas", "muon": "muon.momentum"}[self.optimizer]
            raise UserError(f"training.momentum: found {self.momentum}; {self.optimizer} has training.{own} instead")
        if self.optimizer != "sgd" and self.clip_scope == "code":
            raise UserError(f"training.clip_scope: found code, which is sgd's; training.optimizer is {self.optimizer}")
        return self

    @property
    def epochs(self) -> int:
        """`local_epochs`; 0 if `local_steps` is given."""
        return self.local_epochs or 0

    def count_steps(self, samples: int) -> int:
        """Return K_i: the mini-batch steps in a round of a client with this many samples."""
        if samples == 0:
            return 0
        if self.local_steps is not None:
            return self.local_steps
        return self.epochs * self.count_steps_per_epoch(samples)

    def find_counted_steps(self, samples: int, of_client_0: int) -> float:
        """Return K_i as methods divide by it: the steps made, or `nominal_steps`."""
        if not self.nominal_steps or self.local_steps is not None or self.batch_size == "full":
            return self.count_steps(samples)
        return self.epochs * (samples if self.nominal_steps == "own" else of_client_0) / self.batch_size

    def find_largest_batch(self, samples: int) -> int:
        """Return the size of a whole batch of a client with this many samples."""
        return samples if self.batch_size == "full" else min(self.batch_size, samples)

    def count_steps_per_epoch(self, samples: int) -> int:
        """Return the mini-batch steps of one pass over this many samples; at least one, even if `last_batch` drops
        it.
        """
        size = samples if self.batch_size == "full" else self.batch_size
        return max(samples // size, 1) if self.last_batch == "drop" else -(-samples // size)
