"""The error for an unknown name: short lists are repeated, long ones are cut to what is near."""

import time

import pytest

from fedray.common.errors import redact, shorten, truncate_repr, unknown

MANY = [f"metric_{number}" for number in range(60)]


def test_a_short_list_is_repeated() -> None:
    assert str(unknown("--kind", "bar", ["bars", "curves"])) == (
        "--kind: unknown name 'bar'; did you mean 'bars'? valid: bars, curves"
    )


def test_of_a_long_list_five_names_and_the_command_that_lists_all() -> None:
    """`metrc_12` lacks one letter of metric_12."""
    error = str(unknown("--metric", "metrc_12", MANY, "`fedray list metrics`"))
    start, end = "--metric: unknown name 'metrc_12'; did you mean 'metric_12'? nearest of 60: metric_12, ", "lists all"
    assert error.startswith(start)
    assert error.endswith(f"; `fedray list metrics` {end}")
    assert error.count("metric_") == 6, "the guess and five names"


def test_without_a_command_that_lists_them_every_name_is_repeated() -> None:
    assert all(name in str(unknown("key", "metrc", MANY)) for name in MANY)


@pytest.mark.parametrize("part", ["a", "a://", "a://b:", "?a=;", "@", "://", "\x1b[", "a.", " \n", "a b@"])
def test_removing_secrets_takes_a_time_proportional_to_the_length(part: str) -> None:
    """It is called on every message and log record: 80,000 letters took 55 s."""
    text, began = part * (80_000 // len(part)), time.process_time()
    redact(text)
    truncate_repr(type("Odd", (), {"__repr__": lambda self: text})())
    assert time.process_time() - began < 2


def test_a_line_keeps_its_beginning_and_its_end() -> None:
    text = "key: " + "x" * 10_000 + "; allowed: 1"
    assert len(shorten(text)) <= 500
    assert shorten(text).startswith("key: xx")
    assert shorten(text).endswith("; allowed: 1")
    assert shorten("short") == "short"
