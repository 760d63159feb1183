"""FedALA: before it trains, a client learns element by element how much of the new global model to take."""

from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Algorithm, Client, Forward, Uploads
from fedray.common.errors import UserError
from fedray.components.base import option
from fedray.models.network import Layout

JUDGED = 10
"""Number of last passes whose losses' standard deviation `threshold` limits."""


class FedALA(Algorithm):
    """q = g(y); a round starts at y = o + W (x - o) in the top layers and at x below; o: the client's last local model.

    W has an entry in [0, 1] for each parameter of the top `layers` layers and starts at 1. On each batch of a random
    share of the shard, drawn once a round, W <- clip_[0,1](W - a g(y) (x - o)). One pass; the first time `start_epochs`
    passes over the same batches. The client sends y_K - x, and the server averages. a = 0 is FedAvg. The personal model
    is the mix before training.

    Readings: p counts layers, normalisation layers too, not tensors (D-69); the first time takes a fixed number of
    passes (D-70); the sample is random (D-71); a client without an o takes x, and W changes only in a client's own
    rounds, although the authors' code runs all N clients each round (D-72). FL-bench's port shares o and W between
    clients (D-73). The paper's grids of p and s were not read again [M].

    As the code has it: the first time ends, after more than 10 passes, once the standard deviation of the loss on the
    last batch of each of the last 10 is below `threshold` (D-70); `start_epochs` then bounds the passes.
    """

    name = "fedala"
    revision = 1  # the passes of the first time see the same batches
    paper = "Zhang et al., FedALA: adaptive local aggregation for personalized federated learning, AAAI 2023"
    idea = "clients learn how much of the global model to take, entry by entry"
    personal = "kept"
    layers: int = option(1, gt=0, description="p: layers from the top that are mixed", paper={"FedALA's code": 1})
    share: float = option(
        0.8, gt=0, le=1, description="s: share of the shard on which W is learnt", paper={"FedALA's code": 0.8}
    )
    weight_lr: float = option(1.0, ge=0, description="a: learning rate of W", paper={"FedALA's code": 1})
    start_epochs: int = Field(10, gt=0, description="passes the first time W is learnt (D-70)")
    threshold: float | None = option(
        None,
        gt=0,
        allow_inf_nan=False,
        description="deviation of the losses that ends the first time, with start_epochs above 10; default: it takes "
        "all passes (D-70)",
        paper={"FedALA": 0.01, "FedALA's code": 0.1},
    )

    @model_validator(mode="after")
    def _refuse_too_few_passes(self) -> Self:
        if self.threshold is not None and self.start_epochs <= JUDGED:
            raise UserError(
                f"algorithm.start_epochs: found {self.start_epochs} with a threshold, which needs more than {JUDGED}"
            )
        return self

    def check_built(self, layout: Layout, tokens: bool) -> None:
        super().check_built(layout, tokens)
        self.refuse_untrained(layout, "head")

    def begin(self, c: Client) -> None:
        if not c.first:
            self.mix(c)

    def mix(self, c: Client) -> None:
        """Learn W and set the client to the mix."""
        top = self.top(c.layout).to(c.theta.device)
        x, gap = c.theta_0, (c.theta_0 - c.state.old)[top]
        w, losses = c.state.get("w", torch.ones_like(gap)), dict[int, Tensor]()

        def loss(forward: Forward) -> Tensor:
            value = cross_entropy(forward(c.x).logits, c.y)
            losses[epoch] = value.detach()
            return value

        for epoch in range(1 if "w" in c.state else self.start_epochs):
            for _ in c.batches("mix", share=self.share):
                there = mixed(x, top, w, gap)
                g = c.grad(there, loss if self.threshold else None, part="head" if self.layers == 1 else "all")
                w = (w - self.weight_lr * g[top] * gap).clamp(0, 1)
            if self.threshold and epoch >= JUDGED and deviation(list(losses.values())) < self.threshold:
                break
        c.local.w, c.theta = w, mixed(x, top, w, gap)

    def top(self, layout: Layout) -> Tensor:
        """Return the positions of the parameters of the top layers, int64; the head is the first of these layers."""
        order = [name for name in layout.names if name not in layout.heads]
        below = list(dict.fromkeys(name.rpartition(".")[0] for name in order))
        chosen = set(below[max(0, len(below) - self.layers + 1) :] if self.layers > 1 else ())
        return layout.mask(lambda name: name in layout.heads or name.rpartition(".")[0] in chosen).nonzero().flatten()

    def upload(self, c: Client) -> Uploads:
        c.state.old = c.theta
        if "w" in c.local:
            c.state.w = c.local.w
        return {}

    def prepare(self, c: Client) -> None:
        if not c.first:
            self.mix(c)


def mixed(x: Tensor, top: Tensor, w: Tensor, gap: Tensor) -> Tensor:
    """Return o + W (x - o) at the positions `top`, x elsewhere; W = 1 gives x exactly. gap: x - o there."""
    return x.index_copy(0, top, x[top] - (1 - w) * gap)


def deviation(losses: list[Tensor]) -> float:
    """Return the standard deviation (population) of the last `JUDGED` losses."""
    return float(torch.stack(losses[-JUDGED:]).double().std(correction=0))
