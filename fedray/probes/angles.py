"""Angles between classifier vectors and between class means (FedGELA, figures 2, 3 and 5), in degrees.

A classifier vector is a row of the head's weight. A class mean is the mean over the class's test samples of the
features (the input of the head, or a model's own `features(x)`), each scaled to length 1, as FedGELA's are by
definition. It is the mean direction; the scale of the features and of single samples does not enter. Features are not
centred. The paper names neither samples nor centring; this is our reading.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from fedray.models.network import Layout


def find_head_weight(layout: Layout, classes: int) -> str | None:
    """Return the name of the head's last matrix if it has a row for every class."""
    shapes = {name: shape for name, shape in zip(layout.names, layout.shapes, strict=True) if name in layout.heads}
    matrices = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] >= classes]
    return matrices[-1] if matrices else None


def get_classifier(theta: Tensor, layout: Layout, classes: int) -> Tensor:
    """Return the classifier vectors `(C, d)`."""
    name = find_head_weight(layout, classes)
    if name is None:
        raise ValueError("the head has no weight of one row per class")  # refused before a run starts
    return layout.views(theta)[name][:classes]


def sum_classes(features: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the sums over each class's samples of their unit features, float64 `(C, d)`; non-finite ones count 0."""
    h = normalize(features.flatten(1).double()).nan_to_num(nan=0.0)
    return one_hot(y, classes).double().T @ h


def measure_angles(vectors: Tensor) -> Tensor:
    """Return the angles between vectors.

    2 atan2(||u - v||, ||u + v||) of the unit vectors: arccos of a cosine near 1 would lose half the digits.

    Args:
        vectors: `(n, d)`.

    Returns:
        float64 degrees `(n, n)`; NaN where a vector is 0 or not finite.
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


def measure_client(theta: Tensor, layout: Layout, sums: Tensor, existing: Tensor) -> dict[str, float]:
    """Return the angles of a local model, among the classes that its client holds and among the classes it lacks.

    Args:
        theta: float32 `(P,)`, the local model.
        layout: of theta.
        sums: `sum_classes` of the test set under that model, which has samples of the missing classes too.
        existing: bool `(C,)`, the classes that the client holds.

    Returns:
        `angle_classifier_existing`, `angle_classifier_missing`, `angle_means_existing`, `angle_means_missing`.
    """
    return {f"angle_{name}": value for name, value in _measure_groups(theta, layout, sums, existing).items()}


def measure_server(theta: Tensor, layout: Layout, sums: Tensor, held: Sequence[Tensor]) -> dict[str, float]:
    """Return the angles of the global model.

    Args:
        theta: float32 `(P,)`, the global model.
        layout: of theta.
        sums: `sum_classes` of the test set under that model, up to a factor.
        held: per client of the round, the classes that it holds, bool `(C,)`.

    Returns:
        `global_angle_classifier` and `global_angle_means`, over all pairs of classes; and, with `_existing` and
        `_missing`, the mean of the same over the clients of the round, for the classes that a client holds and lacks.
    """
    everyone = torch.ones(len(sums), dtype=torch.bool)
    result = {
        name.removesuffix("_existing"): value for name, value in _measure_groups(theta, layout, sums, everyone).items()
    }
    found = [_measure_groups(theta, layout, sums, existing) for existing in held]
    for name in dict.fromkeys(name for client in found for name in client):
        values = [client[name] for client in found if name in client]
        result[name] = sum(values) / len(values)
    return {f"global_angle_{name}": value for name, value in result.items()}


def _measure_groups(theta: Tensor, layout: Layout, sums: Tensor, existing: Tensor) -> dict[str, float]:
    result = {}
    for kind, vectors in (("classifier", get_classifier(theta, layout, len(sums))), ("means", sums)):
        angles = measure_angles(vectors)
        for group, members in (("existing", existing), ("missing", ~existing)):
            if (value := average_angle(angles, members)) is not None:
                result[f"{kind}_{group}"] = value
    return result
