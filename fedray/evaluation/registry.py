"""What of `evaluation` a method or a model cannot give is refused before anything starts."""

from collections.abc import Sequence

from fedray.algorithms.base import Algorithm
from fedray.algorithms.fedsol import FedSOL
from fedray.common.errors import UserError
from fedray.evaluation.angles import head_weight
from fedray.models.network import Layout


def check(probes: Sequence[str], train: bool, algorithm: Algorithm) -> None:
    """Called when the configuration is read. Raises UserError."""
    name, found = algorithm.name, set(probes)
    if len(found) < len(probes):
        raise UserError(f"evaluation.probes: found {', '.join(probes)}; each once")
    if train and algorithm.keeps != "none":
        raise UserError(f"evaluation.train: tests the global model; {name} has none that could be tested")
    if "classes" in found and algorithm.keeps != "none":
        raise UserError(f"evaluation.probes: classes tests the global model; {name} has none that could be tested")
    for probe in ("drift", "proximal"):
        if probe in found and algorithm.shares == "none":
            raise UserError(f"evaluation.probes: {probe} compares with the global model; {name} has none")
    if "lambda" in found and not (isinstance(algorithm, FedSOL) and algorithm.radius == "adaptive"):
        other = "algorithm.radius is fixed" if isinstance(algorithm, FedSOL) else f"algorithm.name is {name}"
        raise UserError(f"evaluation.probes: lambda is the adaptive radius of fedsol; {other}")


def check_built(probes: Sequence[str], layout: Layout, classes: int) -> None:
    """The same once the model is there. Raises UserError."""
    if "angles" in probes and head_weight(layout, classes) is None:
        raise UserError(
            f"evaluation.probes: angles need a head whose weight has a row for each of {classes} classes; "
            f"the model's has {', '.join(sorted(layout.heads))}"
        )
