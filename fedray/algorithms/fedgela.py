"""FedGELA: one fixed classifier for all clients, adapted to each client's classes; its halves FedGE and LA-only."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Client, Forward, ParameterGroup
from fedray.algorithms.linear_head import Gamma, LinearHead, Q, Unbiased, normalised, phi
from fedray.common.errors import UserError
from fedray.components.base import option
from fedray.models.network import Layout, Output

PAPER = "Fan et al., Federated learning with bilateral curation for partially class-disjoint data, NeurIPS 2023"


def simplex_etf(classes: int, width: int) -> Tensor:
    """Return class vectors m_c as rows `(C, d)`, float64: √(C/(C-1)) (I - 11'/C) P', P the Q of a uniform matrix's QR.

    They have length 1 and pairwise cosine -1/(C - 1), the smallest possible for C vectors.
    """
    basis = torch.linalg.qr(torch.rand(width, classes, dtype=torch.float64)).Q
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    result: Tensor = (classes / (classes - 1)) ** 0.5 * centred @ basis.T
    return result


class FedGE(LinearHead):
    """q = ∇ CE(W h/||h||) by the body, W = √E_W times a fixed simplex ETF; only the body is sent.

    FedGELA with Φ = 1: its ablation "GE". A model needs at least as many features as classes; its head's bias is 0. The
    paper's models end in a linear projection (`model.projection`), whose features can have either sign. Features have
    length 1 (E_H = 1) as in the paper (D-37). √E_W is the factor on the logits; the paper and its code give it in
    different units (D-38). The personal model is the one after local training.
    """

    name = "fedge"
    paper = f"{PAPER}, table 4"
    idea = "a fixed simplex ETF as the classifier of all clients"
    reads_features = True
    shares = "body"
    personal = "trained"
    scale_w: float = option(
        1e4,
        gt=0,
        description="E_W: squared length of a class vector",
        paper={"figure 4, powers of ten": "10e3 to 10e6"},
    )

    def check_built(self, layout: Layout, tokens: bool) -> None:
        super().check_built(layout, tokens)
        classes, width = dict(zip(layout.names, layout.shapes, strict=True))[self.weight(layout)]
        if width < classes or classes < 2:
            raise UserError(
                f"model.name: {width} features for {classes} classes; {self.name}'s simplex needs two "
                "classes and as many features as classes (fedgela's paper: model.projection)"
            )

    def initial(self, theta: Tensor, layout: Layout) -> Tensor:
        theta = theta * layout.part("body")
        weight = layout.views(theta)[self.weight(layout)]
        weight.copy_(self.scale_w**0.5 * simplex_etf(*weight.shape))
        return theta

    def trained_part(self, c: Client) -> ParameterGroup:
        return "body"

    def of_client(self, c: Client) -> tuple[Tensor, ...]:
        """Return what a client's own logits depend on."""
        return ()

    def adapted(self, z: Tensor, *of_client: Tensor) -> Tensor:
        """Return a client's own logits, from those under W."""
        return z

    def logits(self, output: Output) -> Tensor:
        return normalised(output)

    def loss(self, forward: Forward, x: Tensor, y: Tensor, *of_client: Tensor) -> Tensor:
        """Return the cross-entropy of a client's own logits."""
        return cross_entropy(self.adapted(self.logits(forward(x)), *of_client), y)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(c.theta, self.loss, *self.of_client(c), part="body")

    def personal_logits(self, c: Client) -> Tensor:
        return self.adapted(self.logits(c.predict(c.theta)), *self.of_client(c))


class FedGELA(FedGE):
    """q = ∇ CE(Φ_k W h/||h||) by the body: FedGE whose class vectors each client scales by Φ_kc = γ Q(n_kc/n_k).

    W, h and E_W as in `fedge`. With Q(x) = x, γ = C, absent classes have Φ = 0, and Σ_k p_k Φ_k = 1 if all clients
    together have equal classes, so the average of the clients' classifiers is W. For table 6's other Q this holds for
    each class only if γ uses statistics of all clients (`gamma: shared`, from the class counts of all clients). By
    default each client takes γ_k = C/Σ_c Q(n_kc/n_k), which shares nothing, is C for Q(x) = x, and makes Σ_k p_k Φ_k =
    1 on average over classes. The softmax runs over all classes, as in the code (D-39). The generic model has Φ = 1;
    the personal one is a client's after its local training, with its Φ_k. The method called FedAvg in the released
    repository has the adapted simplex as well (D-44).
    """

    name = "fedgela"
    paper = f"{PAPER}, eq. 5"
    idea = "FedGE, with each client's classifier scaled to its classes"
    phi: Q = Field("x", description="Q of Φ_kc: the share of the class, its exponential or its root")
    gamma: Gamma = Field(
        "client", description="γ: for each client separately, or for each class from all clients' Q_k (table 6)"
    )

    def make_label(self) -> str:
        """Name in the paper's table 6: `fedgela`, `fedgela-phi-exp`, `fedgela-phi-sqrt`."""
        return self.name if self.phi == "x" else f"{self.name}-phi-{self.phi}"

    def begin(self, c: Client) -> None:
        c.local.phi = phi(c, self.classes(c.layout), self.phi, self.gamma)

    def of_client(self, c: Client) -> tuple[Tensor, ...]:
        return (c.local.phi,)

    def adapted(self, z: Tensor, *of_client: Tensor) -> Tensor:
        return of_client[0] * z


class FedAvgLA(Unbiased):
    """q = ∇ CE(Φ_k W h), Φ_kc = C n_kc/n_k: a learnt classifier whose class vectors each client scales by its shares.

    FedGELA's ablation "LA" without the simplex: W is averaged like the other parameters and has no bias, and h is not
    normalised. The generic model has Φ = 1; the personal one is a client's after its local training, with its Φ_k.
    """

    name = "fedavg-la"
    paper = f"{PAPER}, table 4"
    idea = "a learnt classifier, scaled to each client's classes"
    personal = "trained"
    phi: Q = Field("x", description="Q of Φ_kc: the share of the class, its exponential or its root")

    def begin(self, c: Client) -> None:
        c.local.phi = phi(c, self.classes(c.layout), self.phi)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(c.theta, self.scaled_loss, c.local.phi)

    def personal_logits(self, c: Client) -> Tensor:
        return c.local.phi * c.predict(c.theta).logits
