"""The error for an unknown name: short lists are repeated, long ones are cut to what is near."""

from fedray.common.errors import unknown

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
