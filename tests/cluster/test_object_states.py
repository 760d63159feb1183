"""Clients' states lie in the object store, and clients stay at home: tests/cluster/test_ray_backend.py trains so."""

import numpy as np
import pytest
import ray
import torch

from fedray.cluster.object_states import SLACK, ObjectState, assign_longest_first, assign_to_actors
from fedray.common.vectors import Vectors


def test_what_is_read_lies_in_the_store_and_not_in_the_reader(local_ray: None) -> None:
    """No copy: the tensor's memory is that of the store's array."""
    state = ObjectState(ray.put({"h": np.arange(1 << 18, dtype=np.float32)}))
    first, second = state.load(), state.load()
    assert isinstance(first, Vectors)
    assert first.h.data_ptr() == second.h.data_ptr()
    assert torch.equal(first.h, torch.arange(1 << 18, dtype=torch.float32))


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_clients_stay_at_home_within_the_balance(parts: int) -> None:
    """300 cohorts of unequal clients: never longer than 1.1 x longest-first's largest share; most stay at home."""
    rng = np.random.default_rng(0)
    sizes = 1 + rng.dirichlet(np.full(10, 0.5), 300).max(1) * 100
    homes: dict[int, int] = {}
    stayed = moved = 0
    for _ in range(300):
        cohort = rng.choice(300, 10 * parts, replace=False)
        loads = [int(sizes[i]) for i in cohort]
        shares = assign_to_actors(loads, [homes.get(int(i)) for i in cohort], parts)
        assert sorted(k for share in shares for k in share) == list(range(len(cohort)))
        best = max(sum(loads[k] for k in share) for share in assign_longest_first(loads, parts))
        assert max(sum(loads[k] for k in share) for share in shares) <= SLACK * best
        for part, share in enumerate(shares):
            for k in share:
                stayed += homes.get(int(cohort[k])) == part
                moved += homes.get(int(cohort[k]), part) != part
                homes[int(cohort[k])] = part
    assert stayed > 1.5 * moved


def test_without_homes_it_is_longest_first() -> None:
    loads = [5, 3, 9, 1, 1, 7]
    assert assign_to_actors(loads, [None] * 6, 3) == assign_longest_first(loads, 3)
