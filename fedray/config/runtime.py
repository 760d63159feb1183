"""`runtime`: where a run computes."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedray.common.errors import UserError
from fedray.components.base import Allowed, Checked
from fedray.components.identity import EXCLUDED

SMALLEST_SHARE = 0.0001
"""The smallest part of a CPU or GPU that Ray can hand out."""


class Runtime(Checked):
    """Where a run computes. Only `device`, `threads` and, on a GPU, `deterministic` can change the last bits of a
    number, so only they identify a cell."""

    backend: Annotated[Literal["inline", "ray"], EXCLUDED] = Field(
        "ray", description="ray: use Ray for several processes, a GPU or a cluster; inline: never"
    )
    actors: Annotated[Annotated[int, Field(gt=0)] | Literal["auto"], EXCLUDED] = Field(
        "auto",
        description="processes that train clients, per run; 1: the run's own. auto: its own, and once its other rounds "
        "cost more than the start of more processes, as many as fit (in a sweep, shared with the remaining cells)",
    )
    cpus_per_actor: Annotated[float, EXCLUDED] = Field(1, ge=0)
    gpus_per_actor: Annotated[float, EXCLUDED, Allowed("a fraction in [0, 1] or whole GPUs")] = Field(
        0.0, ge=0, description="fractions share a GPU"
    )
    threads: int = Field(1, gt=0, le=1024, description="threads of each process that computes")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: cuda if gpus_per_actor > 0, otherwise cpu"
    )
    deterministic: bool = Field(
        True, description="on a GPU, only kernels that give the same bits every time; false may be faster"
    )
    stack: Annotated[Annotated[int, Field(gt=0)] | Literal["auto"], EXCLUDED] = Field(
        "auto",
        description="clients of a small model that a process trains together, with the bits they have alone; 1: one "
        "after another. auto: as many as fit a core's cache, up to 64. Methods, models and settings without stacks "
        "ignore it",
    )
    lanes: Annotated[Annotated[int, Field(gt=0)] | Literal["auto"], EXCLUDED] = Field(
        "auto",
        description="clients that a process trains side by side on a GPU, in turn, each on a stream of its own; 1: one "
        "after another. auto: 5, or fewer if the GPU's memory is short",
    )
    checkpoint_every: Annotated[int, EXCLUDED] = Field(50, gt=0, description="rounds between checkpoints")
    keep_states: Annotated[bool | None, EXCLUDED] = Field(
        None,
        description="keep the clients' states of a finished cell; default: only if they hold its personal "
        "models. The model is always kept",
    )
    mirror: Annotated[
        tuple[Literal["tensorboard", "wandb"], ...], EXCLUDED, Allowed("list of `tensorboard`, `wandb`")
    ] = Field((), description="copies of a tracked run for other viewers, below FEDRAY_STORAGE")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if twice := [kind for kind in self.mirror if self.mirror.count(kind) > 1]:
            raise UserError(f"runtime.mirror: found {twice[0]} twice; each viewer once is required")
        gpus = self.gpus_per_actor
        if gpus > 1 and gpus != int(gpus):
            raise UserError(f"runtime.gpus_per_actor: found {gpus}; a fraction below 1 or whole GPUs")
        if self.backend == "ray" and self.device == "cuda" and gpus == 0:
            raise UserError("runtime.device: found cuda with gpus_per_actor 0; Ray hides GPUs that are not asked for")
        for key, value in (("cpus_per_actor", self.cpus_per_actor), ("gpus_per_actor", gpus)):
            if 0 < value < SMALLEST_SHARE:
                raise UserError(f"runtime.{key}: found {value}; Ray counts in units of {SMALLEST_SHARE}")
        if gpus == 0 and self.cpus_per_actor == 0:
            raise UserError("runtime.cpus_per_actor: found 0; an actor without a GPU needs some CPU")
        return self

    def list_identity_entries(self) -> dict[str, Any]:
        entries = super().list_identity_entries()
        if self.torch_device == "cuda":
            return entries | {"device": "cuda"}
        return {key: value for key, value in entries.items() if key == "threads"}

    @property
    def actor_count(self) -> int:
        """Return the number of actors; one for `auto`, until a cell starts (`fedray.cluster.resources`)."""
        return 1 if self.actors == "auto" else self.actors

    @property
    def gpu_share(self) -> float:
        """Return the part of its GPU that a process may use: its fraction; 1 without one, and for several GPUs."""
        return min(self.gpus_per_actor or 1.0, 1.0)

    @property
    def torch_device(self) -> str:
        """`cpu` or `cuda`."""
        if self.device == "auto":
            return "cuda" if self.gpus_per_actor > 0 else "cpu"
        return self.device
