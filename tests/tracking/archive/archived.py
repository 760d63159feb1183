"""Cells as a sweep lists them, with the hashes of their identities."""

from typing import Any

from fedray.common.components.identity import hash_of
from fedray.config import RunConfig

FEDAVG, SMALL = {"name": "fedavg"}, {"name": "fedsam", "rho": 0.1}


def cell(algorithm: dict[str, Any], alpha: float, seed: int) -> dict[str, Any]:
    run = RunConfig.parse(
        {
            "data": "digits",
            "partition": {"name": "dirichlet", "alpha": alpha},
            "model": "mlp",
            "algorithm": algorithm,
            "seed": seed,
        }
    )
    identity = run.identity("0" * 64)
    label = f"{run.algorithm.name} {alpha} s{seed}"
    return {"hash": hash_of(identity), "label": label, "config": run.resolved(), "identity": identity}
