"""Methods that average a part of the model and leave the rest with the clients: FedPer, LG-FedAvg, FedBN."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, ParameterGroup, Part, Received, Server, Sum, Uploads, Vectors


class KeepsPart(Algorithm):
    """Base of methods whose clients keep head or body; a newcomer's part is from x⁰, or the last cohort's mean."""

    keeps: ClassVar[Part] = "head"
    newcomer: Literal["initial", "average"] = Field(
        "initial", description="start of a client's first round: the initial part, or the last cohort's average"
    )

    def message(self, server: Server) -> Vectors:
        return Vectors({name: server.state[name] for name in server.state if name == self.keeps})

    def newcomers_own(self, initial: Tensor, message: Vectors) -> Tensor:
        return message.get(self.keeps, initial)

    def upload(self, c: Client) -> Uploads:
        if self.newcomer == "initial":
            return {}
        return {self.keeps: Sum(c.theta[c.layout.part(self.keeps).to(c.theta.device) > 0], c.weight)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        if self.newcomer == "average":
            server.state[self.keeps] = got.sums[self.keeps]


class FedPer(KeepsPart):
    """q = g(y) on body and head at once; the body is averaged, each client keeps its own head.

    A client starts a round at (b, h_i) and sends only the body's part of u_i. The personal model is (b, h_i),
    unchanged; FL-bench fine-tunes it first (`adapts`, for `evaluation.personal.epochs` epochs, D-59). The paper's text
    was not read again: the definition follows its ports and general knowledge [M].

    As the code has it: in FL-bench a newcomer starts with the average of the last cohort's heads (`newcomer: average`,
    D-106).
    """

    name = "fedper"
    paper = "Arivazhagan et al., Federated learning with personalization layers, 2019"
    idea = "a shared body under each client's own head, trained together"
    shares = "body"
    generic = False
    adapts: Literal["none", "head", "all"] = Field(
        "none",
        description="part fine-tuned before a personal model is tested (D-59)",
        json_schema_extra={"paper": {"FedPer": "none", "FL-bench": "all"}},
    )

    @property
    def personal(self) -> Literal["tuned", "trained", "kept"]:  # type: ignore[override]
        """Kept unchanged, except for the ports' fine-tuning."""
        return "kept" if self.adapts == "none" else "tuned"

    @property
    def finetuned_part(self) -> ParameterGroup:  # type: ignore[override]
        """The part that `adapts` names."""
        return self.adapts


class LGFedAvg(KeepsPart):
    """q = g(y) on body and head at once; the head is averaged, each client keeps its own body.

    FedPer's mirror image: lower layers are local, upper ones global, as the paper says. The authors' CIFAR runs share
    the convolutions instead, which is `fedper` (D-57). All start at the same x⁰ (the authors' runs start from a FedAvg
    checkpoint), and π weights the clients of the cohort (D-58). `newcomer: average` is FL-bench's, for bodies (D-106).
    """

    name = "lg-fedavg"
    paper = "Liang et al., Think locally, act globally: federated learning with local and global representations, 2020"
    idea = "a shared head on each client's own body"
    shares = "head"
    keeps = "body"
    personal = "kept"
    generic = False


class FedBN(Algorithm):
    """q = g(y); everything is averaged except normalisation layers, which each client keeps.

    Scale, shift and running statistics stay with the client; the layers are recognised by their type, including a
    ResNet's `downsample.1`, while the authors' code goes by names with `bn` in them (D-60). A client that has never
    been active has the layers of x⁰. Without normalisation layers this is FedAvg bit for bit, and a warning says so.
    The part that is sent is 1 minus the share of the normalisation layers: 0.9991 of the zoo's ResNet-18.
    """

    name = "fedbn"
    paper = "Li et al., FedBN: federated learning on non-IID features via local batch normalization, ICLR 2021"
    idea = "averages everything except normalisation layers"
    shares = "not_norm"
    keeps = "norm"
    personal = "kept"
    generic = False
