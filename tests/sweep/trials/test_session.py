"""The writing thread of a sweep."""

import threading

import pytest

from fedray.sweep.trials.session import Writer


def fails() -> None:
    raise ValueError("refused")


def test_all_is_called_in_order_by_one_thread() -> None:
    called: list[int] = []
    threads: set[int] = set()

    def write(number: int) -> None:
        called.append(number)
        threads.add(threading.get_ident())

    with Writer() as writer:
        for number in range(5):
            writer.send(write, number)
        assert writer.ask(lambda: list(called)) == [0, 1, 2, 3, 4]
        assert writer.idle
        writer.send(write, 5)
    assert called == [0, 1, 2, 3, 4, 5], "the end of the block waits"
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_goes_wrong_is_raised_once() -> None:
    with Writer() as writer:
        writer.send(fails)
        writer.send(fails)
        with pytest.raises(ValueError, match="refused"):
            writer.finish()
        assert isinstance(writer.refusal, ValueError)
        writer.finish()
        assert writer.ask(lambda: 7) == 7


def test_a_question_raises_what_went_wrong_before_it() -> None:
    with Writer() as writer:
        writer.send(fails)
        with pytest.raises(ValueError, match="refused"):
            writer.ask(lambda: 7)
