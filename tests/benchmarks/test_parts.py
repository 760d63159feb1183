"""The parts of a round: each is its functions' own time, so together they are the round's."""

import time

from benchmarks.parts import PARTS, noted
from tests import small


def test_the_parts_add_up_to_the_round_and_the_functions_are_put_back() -> None:
    """All nine parts occur in a round of FedTOGA, whose whole time is some part's."""
    before = [getattr(owner, name) for functions in PARTS.values() for owner, name in functions]
    with noted() as spent:
        running = small.simulation("fedtoga")
        spent.clear()  # the making of the run, which seeds
        began = time.perf_counter_ns()
        running.step()
        took = time.perf_counter_ns() - began
    assert spent.keys() == PARTS.keys()
    assert all(spent.values())
    assert 0.95 * took < spent.total() <= took
    assert [getattr(owner, name) for functions in PARTS.values() for owner, name in functions] == before
