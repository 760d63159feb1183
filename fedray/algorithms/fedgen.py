"""FedGen: a generator on the server learns, without data, features of each class on which the clients' heads agree."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import batch_norm, cross_entropy, linear, one_hot

from fedray.algorithms.auxiliary import kl
from fedray.algorithms.base import Client, Forward, PerClient, Received, Server, Uploads, Vectors
from fedray.algorithms.linear_head import LinearHead
from fedray.components.base import option
from fedray.models.network import Layout

BETAS, EPS = (0.9, 0.999), 1e-8
"""Adam's constants, PyTorch's defaults."""


class FedGen(LinearHead):
    """q = ∇ [CE + b_t KL(softmax(head(G(y))) || softmax(z)) + (n_G/n) a_t CE(head(G(y~)), y~)]; a_t = a decay^t,
    b_t = b decay^t; in the first round q = g(y).
    server: Adam on Σ_i w_iy CE(head_i(G(y)), y) + v exp(-mean_jk |e_j - e_k|² |G_j - G_k|), y: n_G labels

    G(y) are features, generated from label y and uniform noise e by Linear, BatchNorm, ReLU, Linear; clients use the
    running statistics of its BatchNorm. head: the client's own in that step; no gradient flows through the target. n:
    samples of the batch; y~: n_G labels, each class equally likely. head_i: the cohort's trained heads, sent in
    addition to the updates; w_iy: client i's part of the cohort's samples of class y; only classes that some client has
    are drawn; distances are means over dimensions.

    Readings (D-48): the teachers are the clients' heads, the noise is uniform. a = b = 0 is FedAvg.
    """

    name = "fedgen"
    paper = "Zhu et al., Data-free knowledge distillation for heterogeneous federated learning, ICML 2021, algorithm 1"
    idea = "the server learns to generate features that regularise the clients' heads"
    alpha: float = option(10.0, ge=0, description="a: weight of the generated samples", paper={"FedGen's code": 10})
    beta: float = option(
        10.0, ge=0, description="b: weight of the distillation", paper={"FedGen's code": 10, "FedGen's code, EMNIST": 1}
    )
    diversity: float = Field(1.0, ge=0, description="v: weight of the diversity of generated features")
    decay: float = Field(0.98, gt=0, le=1, description="factor per round of a, b and Adam's learning rate")
    epochs: int = Field(20, ge=0, description="local epochs in which clients use the generator")
    batch: int = Field(32, gt=1, description="n_G: samples generated at a time")
    steps: int = Field(50, gt=0, description="Adam's steps per round")
    lr: float = option(
        3e-4,
        gt=0,
        description="Adam's learning rate in the first round",
        paper={"FedGen's code, MNIST": 3e-4, "FedGen's code, EMNIST": 1e-4},
    )
    weight_decay: float = Field(1e-2, ge=0, description="Adam's weight decay, added to the gradient")
    hidden: int = option(
        512,
        gt=0,
        description="width of the generator",
        paper={"FedGen's code, CIFAR": 512, "FedGen's code, MNIST": 256},
    )
    noise: int = option(
        64, gt=0, description="dimension of e", paper={"FedGen's code, CIFAR": 64, "FedGen's code, MNIST": 32}
    )

    def generator(self, features: int, classes: int) -> Layout:
        """Return the layout of the generator's parameters in its flat vector."""
        return Layout(
            ("inner.weight", "inner.bias", "norm.weight", "norm.bias", "outer.weight", "outer.bias"),
            (
                (self.hidden, self.noise + classes),
                (self.hidden,),
                (self.hidden,),
                (self.hidden,),
                (features, self.hidden),
                (features,),
            ),
        )

    def message(self, server: Server) -> Vectors:
        if not server.state:
            return Vectors()
        known = ("generator", "mean", "var")
        return Vectors({name: server.state[name] for name in known}, weight=torch.tensor(self.decay**server.round))

    def generated(self, c: Client, y: Tensor) -> Tensor:
        """Return G(y): features `(n, d)` for labels `(n,)`, with new noise."""
        layout = self.generator(self.head(c.layout, c.theta)[0].shape[1], len(c.counts))
        e = torch.rand(len(y), self.noise, device=y.device)
        return generate(
            layout.views(c.message.generator),
            c.message.mean,
            c.message.var,
            e,
            one_hot(y, len(c.counts)),
            training=False,
        )

    def gradient(self, c: Client) -> Tensor:
        if not c.message or c.epoch >= self.epochs:
            return c.grad(c.theta)
        labels = torch.randint(len(c.counts), (self.batch,), device=c.y.device)
        same, other = self.generated(c, c.y), self.generated(c, labels)
        return c.grad(c.theta, self.loss, same, other, labels, c.message.weight)

    def loss(
        self, forward: Forward, x: Tensor, y: Tensor, same: Tensor, other: Tensor, labels: Tensor, weight: Tensor
    ) -> Tensor:
        """Return cross-entropy and, by its weight, what generated features teach: of the same labels, and of others."""
        with torch.no_grad():
            target = forward.head(same)
        output, z = forward(x), forward.head(other)
        return cross_entropy(output.logits, y) + weight * (
            self.beta * kl(target, output.logits) + self.batch / len(y) * self.alpha * cross_entropy(z, labels)
        )

    def head(self, layout: Layout, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return W `(C, d)` and b `(C,)` of the head, b = 0 if it has no bias; W and b are views."""
        views, name = layout.views(theta), self.weight(layout)
        bias = next((views[other] for other in layout.heads if other != name), None)
        return views[name], theta.new_zeros(len(views[name])) if bias is None else bias

    def upload(self, c: Client) -> Uploads:
        weight, bias = self.head(c.layout, c.theta)
        return {"weight": PerClient(weight), "bias": PerClient(bias), "counts": PerClient(c.counts)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        if not server.state:
            server.state = self.start(self.generator(got.weight.shape[2], got.counts.shape[1]))
        present = got.counts.sum(0).nonzero().flatten()
        for k in range(self.steps):
            y = present[torch.randint(len(present), (self.batch,))]
            e = torch.rand(self.batch, self.noise)
            self.learn(server.state, got, y, e, server.round * self.steps + k)

    def start(self, layout: Layout) -> Vectors:
        """Return a new generator, initialised as in PyTorch (U(-1/√n, 1/√n), n inputs), and Adam's moments."""
        parts = []
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            inputs = layout.shapes[0 if name.startswith("inner") else 4][1]
            parts.append(
                torch.full(shape, float(name == "norm.weight"))
                if name.startswith("norm")
                else torch.empty(shape).uniform_(-(inputs**-0.5), inputs**-0.5)
            )
        flat = torch.cat([part.flatten() for part in parts])
        return Vectors(
            generator=flat,
            m=torch.zeros_like(flat),
            v=torch.zeros_like(flat),
            mean=torch.zeros(self.hidden),
            var=torch.ones(self.hidden),
        )

    def learn(self, state: Vectors, teachers: Received, y: Tensor, e: Tensor, step: int) -> None:
        """Take Adam's step number `step`, counted from 0 over all rounds, on `state`, for labels y `(n,)` and noise e.

        teachers: `weight` `(M, C, d)` and `bias` `(M, C)` of the clients' heads, their `counts` `(M, C)`.
        """
        flat = state.generator.clone().requires_grad_()
        mean, var = state.mean.clone(), state.var.clone()
        classes = teachers.counts.shape[1]
        views = self.generator(teachers.weight.shape[2], classes).views(flat)
        h = generate(views, mean, var, e, one_hot(y, classes), training=True)
        (g,) = torch.autograd.grad(self.objective(h, e, y, teachers), flat)
        g = g + self.weight_decay * state.generator
        b1, b2 = BETAS
        m, v = b1 * state.m + (1 - b1) * g, b2 * state.v + (1 - b2) * g**2
        moved = (m / (1 - b1 ** (step + 1))) / ((v / (1 - b2 ** (step + 1))).sqrt() + EPS)
        lr = self.lr * self.decay ** (step // self.steps)
        state.update(generator=state.generator - lr * moved, m=m, v=v, mean=mean, var=var)

    def objective(self, h: Tensor, e: Tensor, y: Tensor, teachers: Received) -> Tensor:
        """Return the generator's loss for its output h `(n, d)` from e and y."""
        logits = torch.einsum("nd,mcd->mnc", h, teachers.weight) + teachers.bias[:, None]
        losses = cross_entropy(logits.flatten(0, 1), y.repeat(len(logits)), reduction="none").view(len(logits), -1)
        parts = teachers.counts / teachers.counts.sum(0).clamp(min=1)
        apart = (e[:, None] - e).square().mean(2) * (h[:, None] - h).abs().mean(2)
        return (parts[:, y] * losses).sum(0).mean() + self.diversity * (-apart.mean()).exp()


def generate(views: dict[str, Tensor], mean: Tensor, var: Tensor, e: Tensor, y: Tensor, training: bool) -> Tensor:
    """Apply the generator: noise e `(n, noise)` and one-hot labels y `(n, C)` to features `(n, d)`.

    training: use the batch's own statistics, and update `mean` and `var` in place.
    """
    a = linear(torch.cat([e, y], 1), views["inner.weight"], views["inner.bias"])
    a = batch_norm(a, mean, var, views["norm.weight"], views["norm.bias"], training=training)
    return linear(a.relu(), views["outer.weight"], views["outer.bias"])
