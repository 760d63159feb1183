"""The rounds at the end of a run that `last10_*` averages."""

from collections.abc import Collection, Iterable, Mapping, Sequence


def list_last_rounds(rounds: int) -> range:
    """Return the rounds, from 1, of a run of this many that count: the last fifth, at least one and at most ten."""
    return range(rounds - max(1, min(10, rounds // 5)) + 1, rounds + 1)


def find_last_values(history: Sequence[Mapping[str, float]], metric: str) -> dict[int, float]:
    """Return round -> value of the evaluations that count; rows without the metric are left out.

    Args:
        history: a row per evaluated round, its last one that of the run.
        metric: a name in the rows.
    """
    counted = list_last_rounds(int(history[-1]["round"]))
    return {int(row["round"]): row[metric] for row in history if row["round"] in counted and metric in row}


def mean(values: Collection[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def describe_accuracy(history: Sequence[Mapping[str, float]]) -> str:
    """Return the number that tables show of a run and the rounds behind it: `93.24 %, mean of rounds 91 to 100`.

    If personal models were tested, theirs follows: `82.10 %, mean of rounds 91 to 100; personal 94.16 %, round 100`.
    """
    tested, personal = (find_last_values(history, name) for name in ("test_accuracy", "personal_accuracy"))
    text = _describe_mean(tested)
    return f"{text}; personal {_describe_mean(personal)}" if personal else text


def _describe_mean(found: Mapping[int, float]) -> str:
    return f"{mean(found.values()):.2f} %, {describe_rounds([found])}"


def describe_rounds(runs: Iterable[Iterable[int]]) -> str:
    """Return which rounds a mean is of, in words that are true for all runs: `mean of rounds 91 to 100`.

    Args:
        runs: the rounds of each run that count and were evaluated, ascending.
    """
    found = {tuple(rounds) for rounds in runs}
    windows = {list_last_rounds(rounds[-1]) for rounds in found}
    if all(len(rounds) == 1 for rounds in found) and found:
        return f"round {found.pop()[0]}" if len(found) == 1 else "the last round"
    whole = all(len(rounds) == len(list_last_rounds(rounds[-1])) for rounds in found)
    if len(windows) == 1:
        (window,) = windows
        return f"mean of {'rounds' if whole else 'the tests in rounds'} {window[0]} to {window[-1]}"
    if whole and len({len(window) for window in windows}) == 1:
        return f"mean of the last {len(windows.pop())} rounds"
    return "mean of the tests in the last fifth of the rounds, at most 10"
