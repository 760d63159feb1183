"""Writes to a store that goes away: in order, each once as far as the store can tell, never lost silently."""

import logging
import threading

import pytest

from fedray.common.process import ending
from fedray.tracking import outbox
from fedray.tracking.outbox import LONGEST, Outbox, Undelivered


class Store:
    """A store that is `up` or not, and a clock that only sleeping moves (one that is injected)."""

    def __init__(self) -> None:
        self.up, self.now, self.held, self.attempts = True, 1000.0, list[object](), list[float]()
        self.back = float("inf")

    def write(self, value: object) -> None:
        self.attempts.append(self.now)
        if not (self.up or self.now >= self.back):
            raise ConnectionError("refused")
        if value == "wrong":
            raise ValueError("no such thing")
        self.held.append(value)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def outbox(self) -> Outbox:
        return Outbox(lambda error: isinstance(error, OSError), lambda: self.now, self.sleep)


def test_what_is_sent_while_the_store_is_away_arrives_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """Away from 1000 s to 1100 s. Attempts after 1, 2, 4, 8, 16, 30, 30 and 30 s more: at 1001, 3, 7, 15, 31, 61, 91
    and then 1121, and all ten in that one."""
    store = Store()
    box = store.outbox()
    box.send(lambda: store.write(-1))
    store.up, store.back = False, 1100.0
    with caplog.at_level(logging.WARNING, "fedray"):
        for value in range(10):
            box.send(lambda value=value: store.write(value))
        assert (store.held, len(box._waiting)) == ([-1], 10)
        box.drain(patience=300)
    assert store.held == list(range(-1, 10))
    assert [round(at - 1000) for at in store.attempts[1:]] == [0, 1, 3, 7, 15, 31, 61, 91] + [121] * 10
    assert LONGEST == 30
    assert [line.message for line in caplog.records] == [
        "MLflow is unreachable (refused); buffering writes and retrying",
        "MLflow is reachable again; 9 writes are waiting",
    ]


def test_a_process_that_is_to_end_waits_ten_seconds() -> None:
    """However long a store may be away otherwise: batch systems give a process 30 seconds after SIGTERM."""
    store = Store()
    box = store.outbox()
    store.up = False
    box.send(lambda: store.write(0))
    ending.set()
    try:
        with pytest.raises(KeyboardInterrupt):
            box.drain(patience=60)
        assert 1010 <= store.now <= 1011
        store.up = True
        box.drain(patience=60)
        assert store.held == [0]
    finally:
        ending.clear()


def test_what_the_store_refuses_is_raised_and_does_not_stop_the_rest() -> None:
    store = Store()
    box = store.outbox()
    with pytest.raises(ValueError, match="no such thing"):
        box.send(lambda: store.write("wrong"))
    box.send(lambda: store.write(1))
    assert (store.held, len(box._waiting)) == ([1], 0)


def test_a_write_without_an_answer_is_waited_for_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then passes MLflow's limit, which is one for each byte."""
    monkeypatch.setattr(outbox, "SLOW", 0.05)
    store, answered = Store(), threading.Event()
    box = store.outbox()

    def slow() -> None:
        store.write("slow")
        answered.wait()

    box.send(slow)
    box.send(lambda: store.write("next"))
    with pytest.raises(Undelivered, match=r"unreachable for 5 s \(no answer in 0.05 s\); 2 writes have not arrived"):
        box.drain(patience=5)
    answered.set()
    box.drain(patience=60)
    assert store.held == ["slow", "next"]
