"""Methods that average a part of the model and leave the rest with clients: FedPer, LG-FedAvg, FedBN, FedSA-LoRA."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Finetuning, Part, Received, Server, Sum, Uploads, Vectors, holds
from fedray.common.errors import UserError
from fedray.components.base import option


@holds(sent="all")
class KeepsPart(Algorithm):
    """Base of methods whose clients keep head or body; a newcomer's part is from x⁰, or the last cohort's mean, with
    the mean of its running statistics.
    """

    keeps: ClassVar[Part] = "head"
    newcomer: Literal["initial", "average"] = Field(
        "initial", description="start of a client's first round: the initial part, or the last cohort's average"
    )

    @property
    def averaged_statistics(self) -> str:
        return "all" if self.newcomer == "average" else super().averaged_statistics

    def count_revisions(self) -> int:  # newcomers had the initial running statistics
        return super().count_revisions() + (self.newcomer == "average")

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
    adapts: Literal["none", "head", "all"] = option(
        "none",
        description="part fine-tuned before a personal model is tested (D-59)",
        paper={"FedPer": "none", "FL-bench": "all"},
    )

    @property
    def personal(self) -> Literal["tuned", "trained", "kept"]:  # type: ignore[override]
        """Kept unchanged, except for the ports' fine-tuning."""
        return "kept" if self.adapts == "none" else "tuned"

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(part=self.adapts)


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
    been active has the layers of x⁰. Without normalisation layers the global model is FedAvg's, bit for bit, and a
    warning says so; personal models are still tested without fine-tuning.
    The part that is sent is 1 minus the share of the normalisation layers: 0.9991 of the zoo's ResNet-18.
    """

    name = "fedbn"
    paper = "Li et al., FedBN: federated learning on non-IID features via local batch normalization, ICLR 2021"
    idea = "averages everything except normalisation layers"
    shares = "not_norm"
    keeps = "norm"
    personal = "kept"
    generic = False


EXCHANGE = ("client_state", "message", "upload", "prepare", "personal_logits")
"""Hooks of methods that exchange or keep more than parameters, or whose personal model is more than the kept one."""


def share_matrix(method: Algorithm, share: Literal["A", "B"]) -> Algorithm:
    """Return a method as it runs if each client keeps one matrix of the model's adapters.

    With `share: A` and FedAvg this is FedSA-LoRA (Guo et al., Selective aggregation for low-rank adaptation in
    federated learning, ICLR 2025): A and the head are averaged, B stays with its client, and the personal model is the
    one that results, unchanged. The local training may be that of any method that exchanges parameters alone; UserError
    is raised for another one.
    """
    kind = type(method)
    if any(map(method.overrides, EXCHANGE)) or (kind.shares, kind.keeps, kind.personal) != ("all", "none", "tuned"):
        raise UserError(
            f"model.lora.share: found {share}, which is for methods that exchange parameters alone; {method.name} "
            "exchanges or keeps something of its own, so share: both is required"
        )
    kept = {"A": "lora_B", "B": "lora_A"}[share]
    shared = method.model_copy()
    vars(shared).update(shares=f"not_{kept}", keeps=kept, personal="kept", generic=False)  # in place of the class's
    return shared
