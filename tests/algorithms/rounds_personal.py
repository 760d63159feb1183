"""Hand-derived rounds of Local-only, PerFedAvg, kNN-Per, FedProto and FedGen.

PerFedAvg's clients have one sample each, so that every batch drawn is that sample. kNN-Per, FedProto and FedGen need
features: h = A x, logits H h with H = 0 at first (`outputs.TwoLayers`), so that p = ½ and cross-entropy does not move A
in a first step.
"""

from typing import Any

from tests.algorithms.outputs import LN2, times_ln2
from tests.algorithms.quadratic import Case, derived
from tests.algorithms.rounds_outputs import SOFTMAX

ONE_EACH = [((1, 2, -3, 2),), ((2, 1, 2, -3),)]

FEATURES: dict[str, Any] = {
    "model": {"name": "tests.algorithms.outputs:TwoLayers", "body": [[2], [0]]},
    "training": {"batch_size": "full"},
    "samples": [[(1,), (1,)], [(-1,), (1,)]],
    "labels": [[0, 0], [1, 0]],
}
"""Client 0: x = 1 with label 0, twice; client 1: x = -1 with label 1, x = 1 with label 0; one step each.

h = (2, 0), (2, 0) and (-2, 0), (2, 0). For both clients the mean of (p - onehot) h^T is (-½, ½)^T (2, 0) = (-1, 0; 1,
0): η = ½ takes H to (½, 0; -½, 0).
"""


@derived
def local_only() -> Case:
    """Nothing is averaged: x stays 0. Client 0: -½ (3, -4) = (-1.5, 2); g0 there is (1.5, 0), so (-2.25, 2).
    Client 1: (2, -1.5), then g1' = (-1, -2.5): (2.5, -0.25). Its second round: g1 = (1, 2.75): (2, -1.625); g1' = (-1,
    -2.625): (2.5, -0.3125).
    """
    return Case(
        {"name": "local-only"},
        [
            {"theta": (0, 0), "client.0.own": (-1.5, 2), "client.1.own": (2.5, -0.25)},
            {"theta": (0, 0), "client.0.own": (-2.25, 2), "client.1.own": (2.5, -0.3125)},
        ],
    )


@derived
def perfedavg() -> Case:
    """a = ¼. Client 0: y' = -¼ (3, -4) = (-0.75, 1), g0(y') = (2.25, -2), u0 = (-1.125, 1).
    Client 1: y' = -¼ (-4, 3) = (1, -0.75), g1(y') = (-2, 2.25), u1 = (1, -1.125).
    """
    return Case({"name": "perfedavg", "inner_lr": 0.25}, [{"theta": (-0.0625, -0.0625)}], samples=ONE_EACH)


@derived
def perfedavg_hessian_free() -> Case:
    """v as in `perfedavg`; on a quadratic the difference is exact, q = (1 - a A) v with the curvatures A.
    Client 0, A = (1, 2): (0.75 · 2.25, 0.5 · -2) = (1.6875, -1); client 1, A = (2, 1): (-1, 1.6875).
    x = -½ (0.6875, 0.6875)/2.
    """
    return Case(
        {"name": "perfedavg", "inner_lr": 0.25, "hessian_free": True, "delta": 0.5},
        [{"theta": (-0.171875, -0.171875)}],
        samples=ONE_EACH,
    )


@derived
def knnper() -> Case:
    """Trained as FedAvg is: H = (½, 0; -½, 0)."""
    return Case({"name": "knnper"}, [{"theta": (2, 0, 0.5, 0, -0.5, 0)}], **FEATURES)


PROTOTYPES = {"prototypes": [(0, 1), (7, 7)], "known": (1, 0)}
"""P_0 = (0, 1); of class 1 none is known yet."""


@derived
def fedproto() -> Case:
    """λ = 3, n = d = 2: by each h of class 0 it is 2 · ¾ (h - P) = 1.5 (2, -1) = (3, -1.5), by A that times x = 1.
    Client 0 has two such samples: A = (2, 0) - ½ (6, -3) = (-1, 1.5). Client 1 has one, and nothing for x = -1, whose
    class has no prototype: A = (0.5, 0.75). Its means: class 0 (0.5, 0.75), class 1 (-0.5, -0.75).
    P_0 = ((-1, 1.5) + (0.5, 0.75))/2, P_1 = client 1's.
    """
    return Case(
        {"name": "fedproto", "lam": 3.0},
        [
            {
                "theta": (2, 0, 0, 0, 0, 0),
                "client.0.own": (-1, 1.5, 0.5, 0, -0.5, 0),
                "client.1.own": (0.5, 0.75, 0.5, 0, -0.5, 0),
                "server.prototypes": [(-0.25, 1.125), (-0.5, -0.75)],
                "server.known": (1, 1),
            }
        ],
        server=PROTOTYPES,
        **FEATURES,
    )


@derived
def fedproto_by_samples() -> Case:
    """As `fedproto`, but P_0 = (2 (-1, 1.5) + (0.5, 0.75))/3."""
    return Case(
        {"name": "fedproto", "lam": 3.0, "average": "samples"},
        [{"server.prototypes": [(-0.5, 1.25), (-0.5, -0.75)]}],
        server=PROTOTYPES,
        **FEATURES,
    )


@derived
def fedproto_of_running_features() -> Case:
    """As `fedproto`, but the features are those of the only epoch, before its step: (2, 0) for class 0, (-2, 0) for 1.
    The second round's client 0 alone: class 1 keeps its prototype. P_0 = (2, 0) pulls its h = (-1, 1.5) back, and the
    features met are (-1, 1.5).
    """
    return Case(
        {"name": "fedproto", "lam": 3.0, "prototypes": "running"},
        [
            {"server.prototypes": [(2, 0), (-2, 0)], "server.known": (1, 1)},
            {"server.prototypes": [(-1, 1.5), (-2, 0)], "server.known": (1, 1)},
        ],
        server=PROTOTYPES,
        cohorts=[[0, 1], [0]],
        **FEATURES,
    )


def generator(inner: tuple[float, ...], outer: tuple[float, ...], bias: tuple[float, ...]) -> dict[str, Any]:
    """A state of the server whose G has one hidden unit: weights (0 for the noise, then per class), outer weights."""
    flat = (0, *inner, 0, 1, 0, *outer, *bias)
    return {"generator": flat, "m": [0.0] * len(flat), "v": [0.0] * len(flat), "mean": [0.0], "var": [1 - 1e-5]}


SMALL = {"name": "fedgen", "hidden": 1, "noise": 1, "batch": 2, "steps": 1}


@derived
def fedgen() -> Case:
    """a = 4, b = 0; hidden unit 0 and 2 for the two classes: G(0) = (1, -1), G(1) = (1, -1) + 2 (-1, 1) = -G(0).
    At H = 0 (p - onehot) G^T is (-½, ½)^T (1, -1) for either label. n_G/n = 1, a = 4: (-2, 2; 2, -2), with the real
    samples' (-1, 0; 1, 0) q = (-3, 2; 3, -2), for both clients.
    """
    return Case(
        {**SMALL, "alpha": 4.0, "beta": 0.0},
        [{"theta": (2, 0, 1.5, -1, -1.5, 1)}],
        server=generator((0, 2), (-1, 1), (1, -1)),
        **FEATURES,
    )


@derived
def fedgen_distillation() -> Case:
    """a = 0, b = 17, η = 6 ln 2, the features are the inputs; G(0) = -½, G(1) = G(2) = 0. At logits 0 the target equals
    p: u0 = (2, 2, -4) ln 2, client 1's first step y = (-2, 4, -2) ln 2, as in `fedntd`. Then p = (1, 64, 1)/66; target
    softmax(-½ y) = (2, ¼, 2)/4.25 = (8, 1, 8)/17; 17 (p - target) = (-511, 1022, -511)/66; with p - onehot = (-65, 64,
    1)/66: q = (-576, 1086, -510)/66. u1 = ((-22, 44, -22) - (-576, 1086, -510)) ln 2/11 = (554, -1042, 488) ln 2/11.
    x = ((22, 22, -44) + (554, -1042, 488)) ln 2/22.
    """
    return Case(
        {**SMALL, "alpha": 0.0, "beta": 17.0},
        [{"theta": times_ln2((576, -1020, 444), 22)}],
        server=generator((1, 0, 0), (-0.5,), (0,)),
        training={"lr": 6 * LN2},
        **SOFTMAX,
    )
