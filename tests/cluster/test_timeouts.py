"""When a call counts as hung."""

from fedray.cluster.timeouts import FIRST, FLOOR, CallTimeouts


def test_limits_follow_the_slowest_pace_of_their_kind() -> None:
    """Paces 3/10 and 40/20 s per step: 20 x 2.0 x 30 = 1200 s for 30 steps, twice that in the second attempt."""
    pace = CallTimeouts()
    assert pace.limit("train", 30, 0) == FIRST
    pace.measured("train", 10, 3.0)
    assert pace.limit("train", 10, 0) == FLOOR, "20 x 0.3 x 10 = 60 s are below it"
    pace.measured("train", 20, 40.0)
    pace.measured("train", 20, 20.0)
    assert pace.limit("train", 30, 0) == 1200
    assert pace.limit("train", 30, 1) == 2400
    assert pace.limit("evaluate", 30, 0) == FIRST
