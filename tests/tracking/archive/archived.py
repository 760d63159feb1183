"""Cells as a sweep lists them, with the hashes of their identities."""

from typing import Any

from fedray.config import RunConfig
from tests.small import list_cell

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
    return list_cell(run, "0" * 64, f"{run.algorithm.name} {alpha} s{seed}")
