"""When a call counts as hung."""

import pytest
from ray.exceptions import GetTimeoutError

from fedray.cluster.ray_backend import RayBackend
from fedray.cluster.timeouts import FIRST, FLOOR, CallTimeouts
from fedray.config import Runtime


def test_limits_follow_the_slowest_pace_of_their_kind() -> None:
    """Times of 3/10 and 40/20 s per step: 20 x 2.0 x 30 = 1200 s for 30 steps, twice that in the second attempt."""
    pace = CallTimeouts()
    assert pace.get_limit("train", 30, 0) == FIRST
    pace.note("train", 10, 3.0)
    assert pace.get_limit("train", 10, 0) == FLOOR, "20 x 0.3 x 10 = 60 s are below it"
    pace.note("train", 20, 40.0)
    pace.note("train", 20, 20.0)
    assert pace.get_limit("train", 30, 0) == 1200
    assert pace.get_limit("train", 30, 1) == 2400
    assert pace.get_limit("evaluate", 30, 0) == FIRST


def test_who_waits_for_a_neighbour_that_hangs_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three actors hangs until its limit of 120 s. The third is read only then, and is not measured:
    20 times the 120 s that have passed would be the next limit."""
    now, hanging = [0.0], {1}
    backend = RayBackend(Runtime(actors=3))
    backend._timeouts = CallTimeouts()
    backend._timeouts.note("open", 1, 1.0)
    backend._setup = ()  # type: ignore[assignment]

    def get(slot: int, timeout: float) -> int:
        if slot in hanging:
            now[0] += timeout
            raise GetTimeoutError
        return slot

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr("ray.kill", lambda actor: None)
    monkeypatch.setattr(RayBackend, "_start_call", lambda self, slot, method, arguments: [slot])
    monkeypatch.setattr(RayBackend, "_spawn", lambda self, slot: hanging.remove(slot))
    assert backend._call("open", [()] * 3) == [0, 1, 2]
    assert now[0] == FLOOR
    assert backend._timeouts.get_limit("open", 1, 0) == FLOOR
