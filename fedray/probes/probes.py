"""The probes that come with fedray, and the summary of their measurements of a round.

Probes measure a client right after its local training; a round logs their mean over the cohort and, as
`NAME_std`, their standard deviation over it (population). Values that are undefined for a client are left out of both.

Angles (FedGELA's figures 2, 3 and 5) are in degrees. A classifier vector is a row of the head's weight. A class
mean is the mean over the class's test samples of the features (the input of the head, or a model's own `features(x)`),
each scaled to length 1, as FedGELA's are by definition. It is the mean direction; the scale of the features and of
single samples does not enter. Features are not centred. The paper names neither samples nor centring; this is our
reading.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from fedray.algorithms.base import Algorithm
from fedray.client import CHUNK, LocalClient
from fedray.common.errors import UserError
from fedray.datasets.dataset import Samples
from fedray.models.network import Layout, Output
from fedray.probes.probe import EvaluatedRound, Probe, TrainedClient, check_metrics, refuse_writes
from fedray.probes.proximal import measure_cosine, measure_forgetting, measure_step


class Adaptation(Probe):
    """`adaptation`: ‖Φ_k W - W‖, the distance of a client's scaled classifier from the shared one (FedGELA);
    `adaptation_weighted`: Σ p_k ‖Φ_k W - W‖ over the cohort, p_k = n_k / Σ n, as in the paper's bounds.
    """

    name = "adaptation"
    metrics = {
        "adaptation": "distance of adapted and shared classifier ‖ΦW - W‖",
        "adaptation_weighted": "distance of adapted and shared classifier Σ p ‖ΦW - W‖",
    }

    def check(self, algorithm: Algorithm) -> None:
        if "phi" not in type(algorithm).model_fields:
            raise UserError(
                f"evaluation.probes: adaptation needs a classifier that clients scale (fedgela, fedavg-la); "
                f"{algorithm.make_label()} has none"
            )

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        c = seen.c
        w = get_classifier(c.theta, c.layout, c.population.classes)
        moved = (c.local.phi[: len(w)] - 1)[:, None] * w
        return {"adaptation": float(torch.linalg.vector_norm(moved))}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        weighted = sum(n * seen.measured[i]["adaptation"] for i, n in seen.samples.items())
        return {"adaptation_weighted": weighted / sum(seen.samples.values())}


class Angles(Probe):
    """Angles between classifier vectors and between class means (FedGELA, figures 2, 3, 5)."""

    name = "angles"
    metrics = {
        "angle_classifier_existing": "angle between local classifier vectors of existing classes (degrees)",
        "angle_classifier_missing": "angle between local classifier vectors of missing classes (degrees)",
        "angle_means_existing": "angle between local means of existing classes (degrees)",
        "angle_means_missing": "angle between local means of missing classes (degrees)",
        "global_angle_classifier": "angle between global classifier vectors (degrees)",
        "global_angle_means": "angle between global class means (degrees)",
        "global_angle_classifier_existing": "angle between global classifier vectors of existing classes (degrees)",
        "global_angle_classifier_missing": "angle between global classifier vectors of missing classes (degrees)",
        "global_angle_means_existing": "angle between global means of existing classes (degrees)",
        "global_angle_means_missing": "angle between global means of missing classes (degrees)",
    }
    tested_models = frozenset({"local", "global"})
    client: int | None = Field(
        None, ge=0, description="the client to measure alone, in rounds whose cohort has it; default the whole cohort"
    )

    def check_built(self, layout: Layout, classes: int) -> None:
        if find_head_weight(layout, classes) is None:
            raise UserError(
                f"evaluation.probes: angles need a head whose weight has a row for each of {classes} classes; "
                f"the model's has {', '.join(sorted(layout.heads)) or 'none that is trained'}"
            )

    def test_sums(self, output: Output, y: Tensor, classes: int) -> Tensor:
        return sum_classes(output.features, y, classes)

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        if self.client not in (None, seen.c.id):
            return {}
        angles = _measure_groups(seen.c.theta, seen.c.layout, seen.sums[self.name], seen.c.counts > 0)
        return {f"angle_{name}": value for name, value in angles.items()}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        if self.name not in seen.sums:
            return {}
        sums = seen.sums[self.name]
        whole = _measure_groups(seen.theta, seen.layout, sums, torch.ones(len(sums), dtype=torch.bool))
        result = {name.removesuffix("_existing"): value for name, value in whole.items()}
        held = [seen.holds(i) for i in seen.weights if self.client in (None, i)]
        angles = [_measure_groups(seen.theta, seen.layout, sums, existing) for existing in held]
        for name in dict.fromkeys(name for client in angles for name in client):  # means over the round's clients
            values = [client[name] for client in angles if name in client]
            result[name] = sum(values) / len(values)
        return {f"global_angle_{name}": value for name, value in result.items()}


class Classes(Probe):
    """`accuracy_class_CLASS`: accuracy of the global model on each class's test samples, in percent (FedSOL, fig. 7b).

    A class without test samples has no value. `deviation_of_classes`: the standard deviation over the classes.
    """

    name = "classes"
    metrics = {
        "accuracy_class_*": "accuracy of the class (%)",
        "deviation_of_classes": "deviation of the accuracy over classes in points",
    }
    lower_is_better = frozenset({"deviation_of_classes"})

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.keeps != "none":
            raise UserError(
                f"evaluation.probes: classes tests the global model; {algorithm.name} has none that could be tested"
            )

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        counted = enumerate(seen.test_counts.tolist())
        metrics = {f"accuracy_class_{k}": 100 * float(seen.correct[k]) / int(n) for k, n in counted if n}
        return metrics | {"deviation_of_classes": float(np.std(list(metrics.values())))}


class AgainstGlobal(Probe):
    """Base of the probes that compare local models with the global one."""

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.shares == "none":
            raise UserError(f"evaluation.probes: {self.name} compares with the global model; {algorithm.name} has none")


class Drift(AgainstGlobal):
    """`drift`: ||y_i - x||, over the shared parameters (FedSOL, figure 6a); `drift_between` (6b); `divergence`."""

    name = "drift"
    metrics = {
        "drift": "drift ‖y_i - x‖",
        "drift_between": "distance between local models",
        "divergence": "mean square distance of local models from the new global one",
    }
    lower_is_better = frozenset(metrics)

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        return {"drift": float(torch.linalg.vector_norm(seen.c.shared_update))}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        assert seen.update is not None  # noqa: S101 (`check`)
        lengths = {i: metrics["drift"] for i, metrics in seen.measured.items()}
        drift = measure_drift_between(lengths, seen.weights, seen.update)
        # with d = x' - x: Σ π_i ||y_i - x'||² = Σ π_i ||u_i||² - 2 <Σ π_i u_i, d> + ||d||², as FL-Simulator measures it
        squares = math.fsum(seen.weights[i] * length**2 for i, length in lengths.items())
        d = seen.moved.double()
        return drift | {"divergence": max(squares - 2 * float(seen.update.double() @ d) + float(d.square().sum()), 0.0)}


class Forgetting(Probe):
    """`local_test_accuracy`: accuracy of the local model on the whole test set, in percent (FedSOL, figure 7a)."""

    name = "forgetting"
    metrics = {"local_test_accuracy": "test accuracy of local models (%)"}
    tested_models = frozenset({"local"})

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        return {"local_test_accuracy": 100 * int(seen.correct.sum()) / seen.test_samples}


class Lambda(Probe):
    """`lambda_LAYER`: mean over each layer's parameters of the method's adaptive radii at y_K (FedSOL, figure 5b)."""

    name = "lambda"
    metrics = {"lambda_*": "mean radius Λ of the layer"}

    def check(self, algorithm: Algorithm) -> None:
        if not getattr(algorithm, "adapts_radii", algorithm.radii is not None):  # its name in 0.2
            raise UserError(
                "evaluation.probes: lambda needs a method whose radius adapts to each parameter (fedsol with "
                f"algorithm.radius: adaptive); {algorithm.make_label()} has no such radius as configured"
            )

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        layers, radii = seen.c.layout.layers, seen.algorithm.radii
        assert radii is not None  # noqa: S101 (`check`)
        values = radii(seen.c).double().split(list(layers.values()))
        return {f"lambda_{layer}": float(value.mean()) for layer, value in zip(layers, values, strict=True)}


class ProximalProbe(AgainstGlobal):
    """`proximal_loss`, `proximal_cosine`: the local model's forgetting of the global one's view (FedSOL, figure 3)."""

    name = "proximal"
    metrics = {
        "proximal_loss": "proximal loss KL(global ‖ local)",
        "proximal_cosine": "cosine of update and proximal gradient",
        "proximal_cosine_size": "size of the cosine of update and proximal gradient",
    }
    lower_is_better = frozenset({"proximal_loss", "proximal_cosine_size"})

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        return measure_forgetting(seen.c, seen.algorithm)

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: Tensor) -> dict[str, float]:
        return measure_cosine(c, algorithm, q)


class Step(AgainstGlobal):
    """Changes of the proximal and the local loss by one more step at y_K (the subject of FedSOL's propositions)."""

    name = "step"
    metrics = {
        "proximal_change": "change of the proximal loss by a step",
        "proximal_change_linear": "first-order change of the proximal loss by a step",
        "proximal_change_plain": "change of the proximal loss by a plain step",
        "local_change": "change of the local loss by a step",
        "local_change_plain": "change of the local loss by a plain step",
    }
    lower_is_better = frozenset(metrics)

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        return measure_step(seen.c, seen.algorithm)


class Steps:
    """Measurements of probes at the local steps of one client (`Probe.of_step`)."""

    def __init__(self, probes: Sequence[Probe], algorithm: Algorithm) -> None:
        self.probes = [probe for probe in probes if type(probe).of_step is not Probe.of_step]
        self.algorithm, self.found = algorithm, dict[str, list[float]]()

    def __call__(self, c: LocalClient, q: Tensor) -> None:
        """Measure one step; draws of a probe are none of the training's."""
        taken: dict[str, float] = {}
        with c.population.key_draws(f"probes {c.step}", c._round, c.id, c.theta.device):
            for probe in self.probes:
                with _lend(c, probe, f"step {c.step}", {"q": q, "c.x": c.x}) as twin:
                    taken |= check_metrics(probe, probe.of_step(twin, self.algorithm, q), taken)
        for name, value in taken.items():
            self.found.setdefault(name, []).append(value)

    def average(self) -> dict[str, float]:
        """Return the mean of each metric over the steps that have it."""
        return {name: sum(values) / len(values) for name, values in self.found.items()}


def probe_client(
    probes: Sequence[Probe], c: LocalClient, algorithm: Algorithm, test: Samples, tested: np.ndarray, steps: Steps
) -> dict[str, float]:
    """Return metric -> value of one trained client, whose running statistics the network still holds."""
    testing = [probe for probe in probes if "local" in probe.tested_models]
    correct, sums = _test_local_model(c, algorithm, testing, test, tested)
    metrics = steps.average()
    for probe in probes:
        with _lend(c, probe, "client", {"correct": correct, **sums}) as twin:
            seen = TrainedClient(c=twin, algorithm=algorithm, correct=correct, sums=sums, test_samples=len(tested))
            metrics |= check_metrics(probe, probe.of_client(seen), metrics)
    return metrics


@contextlib.contextmanager
def _lend(c: LocalClient, probe: Probe, purpose: str, tensors: Mapping[str, Tensor]) -> Iterator[LocalClient]:
    """Lend a probe a copy of the client: what it computes and draws changes neither the client nor other probes."""
    twin = c.copy()
    with refuse_writes(probe, tensors, twin), c.network.keep_buffers(), contextlib.ExitStack() as stack:
        if ":" in probe.name:
            purpose = f"probe {probe.name} {purpose}"
            stack.enter_context(c.population.key_draws(purpose, c._round, c.id, c.theta.device))
        yield twin


def _test_local_model(
    c: LocalClient, algorithm: Algorithm, probes: Sequence[Probe], test: Samples, tested: np.ndarray
) -> tuple[Tensor, dict[str, Tensor]]:
    """Test the local model on the whole test set, in evaluation mode, by its generic logits: one pass for all
    probes.
    """
    classes = c.population.classes
    correct, sums = torch.zeros(classes, dtype=torch.int64), dict[str, Tensor]()
    if not probes:
        return correct, sums
    c.network.load(c.theta)
    c.network.train(False)
    for start in range(0, len(tested), CHUNK):
        x, y = test.make_batch(tested[start : start + CHUNK])
        with torch.no_grad():
            output = c.network(x)
            correct += torch.bincount(y[algorithm.logits(output).argmax(1) == y], minlength=classes).cpu()
        for probe in probes:
            if (added := probe.test_sums(output, y, classes)) is not None:
                sums[probe.name] = added + sums[probe.name] if probe.name in sums else added
    return correct, sums


def measure_drift_between(
    lengths: Mapping[int, float], weights: Mapping[int, float], update: torch.Tensor
) -> dict[str, float]:
    """Return `drift_between`: the root of the mean squared distance between two local models of the round (FedSOL,
    figure 6b); nothing if one client has all the weight.

    Pairs i ≠ j count π_i π_j; by Σ_ij π_i π_j ||u_i - u_j||² = 2 (Σ π_i ||u_i||² - ||Σ π_i u_i||²) no pair is formed.
    """
    pairs = math.fsum(weights.values()) ** 2 - math.fsum(w * w for w in weights.values())
    if pairs <= 0:
        return {}
    square = math.fsum(weights[i] * length**2 for i, length in lengths.items()) - float(update.double().square().sum())
    return {"drift_between": float(np.sqrt(max(2 * square / pairs, 0.0)))}


def summarise_cohort(measured: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return mean and standard deviation of each metric over the clients, in ascending order of their ids."""
    names = dict.fromkeys(name for i in sorted(measured) for name in measured[i])
    if taken := names.keys() & {f"{name}_std" for name in names}:
        raise UserError(f"evaluation.probes: {min(taken)} is the deviation of another metric; rename the metric")
    result: dict[str, float] = {}
    for name in names:
        values = np.array([measured[i][name] for i in sorted(measured) if name in measured[i]])
        result |= {name: float(values.mean()), f"{name}_std": float(values.std())}
    return result


def find_head_weight(layout: Layout, classes: int) -> str | None:
    """Return the name of the head's last matrix if it has a row for every class."""
    shapes = {name: shape for name, shape in zip(layout.names, layout.shapes, strict=True) if name in layout.heads}
    matrices = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] >= classes]
    return matrices[-1] if matrices else None


def get_classifier(theta: Tensor, layout: Layout, classes: int) -> Tensor:
    """Return the classifier vectors `(C, d)`."""
    name = find_head_weight(layout, classes)
    assert name is not None  # noqa: S101 (`check_built`)
    return layout.views(theta)[name][:classes]


def sum_classes(features: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the sums over each class's samples of their unit features, float64 `(C, d)`; non-finite ones count 0."""
    h = normalize(features.flatten(1).double()).nan_to_num(nan=0.0)
    return one_hot(y, classes).double().T @ h


def measure_angles(vectors: Tensor) -> Tensor:
    """Return the angles between vectors, float64 degrees `(n, n)`; NaN where a vector is 0 or not finite.

    2 atan2(||u - v||, ||u + v||) of the unit vectors: arccos of a cosine near 1 would lose half the digits.
    """
    u = normalize(vectors.double())
    apart, towards = (torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist") for v in (u, -u))
    angles = torch.rad2deg(2 * torch.atan2(apart, towards))
    undefined = ~(u.square().sum(1) > 0)
    return angles.masked_fill(undefined[:, None] | undefined, torch.nan)


def average_angle(angles: Tensor, members: Tensor) -> float | None:
    """Return the mean over the pairs of different members (bool `(n,)`) whose angle is defined; None without a pair."""
    of_pairs = angles[members][:, members]
    of_pairs = of_pairs[torch.triu(torch.ones_like(of_pairs, dtype=torch.bool), 1)]
    of_pairs = of_pairs[~of_pairs.isnan()]
    return float(of_pairs.mean()) if len(of_pairs) else None


def _measure_groups(theta: Tensor, layout: Layout, sums: Tensor, existing: Tensor) -> dict[str, float]:
    """Return the angles of a model among the classes that a client holds and among the classes it lacks.

    `sums` are `sum_classes` of the test set under that model, which has samples of the missing classes too.
    """
    result = {}
    for kind, vectors in (("classifier", get_classifier(theta, layout, len(sums))), ("means", sums)):
        angles = measure_angles(vectors)
        for group, members in (("existing", existing), ("missing", ~existing)):
            if (value := average_angle(angles, members)) is not None:
                result[f"{kind}_{group}"] = value
    return result
