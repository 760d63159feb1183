"""Metrics of a run: the grammar of their names, their titles, and which way is better.

NAME, final_NAME    in the last round; a metric that is logged once has no other name
last10_NAME         mean over the rounds of `list_last_rounds`
best_NAME           in the best round
NAME_eE             a personal metric after E epochs of fine-tuning, behind any of these prefixes
NAME_std            deviation over the cohort of a probe's metric NAME
NAME:TARGET         see `BY_TARGET`; ratios are taken setting by setting and seed by seed
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from fedray.common.errors import UserError, format_count

LAST, BEST, FINAL = PREFIXES = ("last10_", "best_", "final_")
FEWEST_SEEDS = 3
"""Minimum number of paired seeds for an interval or a test that says anything: with two, t is 12.7 spreads."""
ROUNDS_TO = "rounds_to"
RATIOS = SPEEDUP, SLOWDOWN = ("speedup", "slowdown")
"""Metrics that divide two `rounds_to`."""
BY_TARGET = {
    f"{ROUNDS_TO}:PERCENT": "first evaluated round with that test accuracy",
    f"{ROUNDS_TO}:METHOD": "first evaluated round with that method's best test accuracy, seed by seed",
    f"{SPEEDUP}:TARGET/METHOD": "that method's rounds_to:TARGET divided by the run's own",
    f"{SLOWDOWN}:TARGET/METHOD": "the run's own rounds_to:TARGET divided by that method's",
}
"""Forms of metrics that are computed from the accuracies by round -> what they are."""
DEFAULT = f"{LAST}test_accuracy"
"""The metric of tables, figures and comparisons unless you name another."""
ONCE = (
    "best_round",
    "seconds_per_round",
    "seconds_per_round_with_evaluation",
    "megabytes_down",
    "megabytes_up",
    "diverged_round",
)
"""Metrics of a whole run that are logged once, besides those with a prefix."""
PROFILE = "profile_"
"""Begin of the seconds of a round's parts, which are logged once, too."""
PERSONAL, PERSONAL_TRAIN, UNSEEN = "evaluation.personal", "evaluation.personal.train", "clients.unseen"
"""Keys without which no run logs some metrics."""


@dataclass(frozen=True)
class Known:
    """Facts about a metric that runs log by themselves or that is counted; probes declare theirs.

    Attributes:
        title: with its unit.
        lower: True if the smallest value is the best.
        needs: the key of a configuration without which no run logs it; empty for most.
        of_classes: True for a measure of the global model besides accuracy and loss, that runs summarise and that can
            select.
    """

    title: str
    lower: bool = False
    needs: str = ""
    of_classes: bool = False


BY_ROUND = {
    "test_accuracy": Known("test accuracy in %"),
    "test_balanced_accuracy": Known("balanced test accuracy in %", of_classes=True),
    "test_macro_f1": Known("macro F1 on the test set in %", of_classes=True),
    "test_auc": Known("area under the ROC curve on the test set in %", needs="evaluation.auc", of_classes=True),
    "train_accuracy": Known("training accuracy in %", needs="evaluation.train"),
    "personal_accuracy": Known("personal accuracy in %", needs=PERSONAL),
    "personal_weighted_accuracy": Known(
        "personal accuracy in %, clients weighted by their test samples", needs=PERSONAL
    ),
    "personal_std": Known("deviation of the personal accuracy over clients in points", lower=True, needs=PERSONAL),
    "personal_worst10": Known("personal accuracy in % of the worst tenth of the clients", needs=PERSONAL),
    "personal_best": Known("personal accuracy in % of the best client", needs=PERSONAL),
    "personal_worst": Known("personal accuracy in % of the worst client", needs=PERSONAL),
    "personal_train_accuracy": Known("accuracy in % on the clients' own training samples", needs=PERSONAL_TRAIN),
    "personal_train_std": Known(
        "deviation of the accuracy on own training samples over clients in points", lower=True, needs=PERSONAL_TRAIN
    ),
    "personal_train_best": Known("accuracy in % on own training samples of the best client", needs=PERSONAL_TRAIN),
    "personal_train_worst": Known("accuracy in % on own training samples of the worst client", needs=PERSONAL_TRAIN),
    "personal_train_worst10": Known(
        "accuracy in % on own training samples of the worst tenth of the clients", needs=PERSONAL_TRAIN
    ),
    "generic_accuracy": Known("generic accuracy in %", needs=PERSONAL),
    "unseen_accuracy": Known("accuracy in % of the received model on unseen clients", needs=UNSEEN),
    "unseen_std": Known(
        "deviation of the received model's accuracy over unseen clients in points", lower=True, needs=UNSEEN
    ),
    "unseen_worst10": Known(
        "accuracy in % of the received model on the worst tenth of the unseen clients", needs=UNSEEN
    ),
    "unseen_finetuned_accuracy": Known("accuracy in % on unseen clients after fine-tuning", needs=UNSEEN),
    "validation_accuracy": Known("validation accuracy in %"),
    "validation_client_accuracy": Known("validation accuracy in %, mean over clients"),
    "validation_client_std": Known("deviation of the validation accuracy over clients in points", lower=True),
    "validation_client_worst10": Known("validation accuracy in % of the worst tenth of the clients"),
    "validation_personal_accuracy": Known("validation accuracy in % of personal models", needs=PERSONAL),
    "validation_personal_std": Known(
        "deviation of the validation accuracy of personal models in points", lower=True, needs=PERSONAL
    ),
    "validation_personal_worst10": Known(
        "validation accuracy in % of the worst tenth of the personal models", needs=PERSONAL
    ),
    "validation_loss": Known("validation loss", lower=True),
    "test_loss": Known("test loss", lower=True),
    "train_loss": Known("training loss", lower=True),
}
"""Metrics that are logged by round."""
OF_RUN = {
    "seconds": Known("seconds of training, evaluation not included", lower=True),
    "seconds_per_round": Known("seconds per round, evaluation not included", lower=True),
    "seconds_per_round_with_evaluation": Known("seconds per round, evaluation included", lower=True),
    "megabytes_down": Known("megabytes sent to clients, in all rounds together", lower=True),
    "megabytes_up": Known("megabytes sent by clients, in all rounds together", lower=True),
    "megabytes_sent": Known("megabytes sent to and by clients", lower=True),
    "dropped_clients": Known("clients left out as diverged, in all rounds together", lower=True),
    "megabytes_kept_by_client": Known(
        "megabytes that a client keeps from round to round, besides the model", lower=True
    ),
    "megabytes_held_by_client": Known("megabytes that a client holds in training", lower=True),
    "megabytes_kept_by_server": Known("megabytes that the server keeps, the global model included", lower=True),
    "relative_flops": Known(
        "floating-point operations of a client's round in multiples of fedavg's, counted on the model, what a proximal "
        "loss costs included",
        lower=True,
    ),
}
"""Metrics without a particular round."""
KNOWN = BY_ROUND | OF_RUN
OF_CLASSES = tuple(name.removeprefix("test_") for name, known in BY_ROUND.items() if known.of_classes)


@dataclass(frozen=True)
class Metric:
    """A metric, parsed from its name.

    Attributes:
        name: as it was written.
        plain: the name in a round, without prefix and epochs; for a target `rounds_to`, `speedup` or `slowdown`.
        prefix: one of `PREFIXES`, or empty.
        epochs: of fine-tuning before the test, or empty.
        target: of `rounds_to` and its ratios: the percentage, or the name of a method; else None.
        reference: of `speedup` and `slowdown`: the method whose rounds are compared with; else empty.
    """

    name: str
    plain: str
    prefix: str = ""
    epochs: str = ""
    target: float | str | None = None
    reference: str = ""

    @classmethod
    def parse(cls, name: str, option: str = "--metric") -> Self:
        """Parse the name of a metric, known or not; `option` begins messages.

        Raises UserError for a target that is neither a method nor a percentage, or a ratio without a method.
        """
        plain, _, target = name.partition(":")
        if "=" in name and name.partition("=")[0] in (ROUNDS_TO, *RATIOS):
            raise UserError(f"{option}: found {name!r}; did you mean {name.replace('=', ':', 1)!r}?")
        if plain in RATIOS:
            target, _, reference = target.partition("/")
            return cls(name, plain, target=_parse_target(name, target, option, reference), reference=reference)
        if plain == ROUNDS_TO:
            return cls(name, plain, target=_parse_target(name, target, option))
        prefix = "" if name in ONCE else next((one for one in PREFIXES if name.startswith(one)), "")
        found = re.fullmatch(r"(.*(?:personal|unseen)_.+)_e(\d+)", plain := name.removeprefix(prefix))
        return cls(name, found[1], prefix, found[2]) if found else cls(name, plain, prefix)

    @property
    def known(self) -> Known:
        """Facts about it; without a title for a metric of a probe."""
        return KNOWN.get(self.plain, Known(""))

    @property
    def is_smaller_better(self) -> bool:
        """True if the smallest value is the best, of the metrics of this module; probes declare it of theirs."""
        return self.plain in (ROUNDS_TO, SLOWDOWN) or self.known.lower or self.plain.startswith(PROFILE)

    @property
    def rounds(self) -> str:
        """The `rounds_to` that a ratio divides."""
        return f"{ROUNDS_TO}:{self.name.partition(':')[2].partition('/')[0]}"

    @property
    def is_on_test_set(self) -> bool:
        """True unless it is measured on held-out samples."""
        return "validation" not in self.plain

    @property
    def is_of_clients(self) -> bool:
        """True if it is measured when clients' own models are tested: then alone, but for the generic accuracy."""
        return self.known.needs in (PERSONAL, PERSONAL_TRAIN, UNSEEN)


def _parse_target(name: str, target: str, option: str, reference: str | None = None) -> float | str:
    plain, other = name.partition(":")[0], "" if reference is None else "/METHOD"
    if reference != "":
        if re.match(r"[^\W\d]", target):
            return target
        if re.fullmatch(r"\d+(\.\d+)?", target) and 1 <= float(target) <= 100:
            return float(target)
    raise UserError(
        f"{option}: found {name!r}; {plain}:PERCENT{other} with a test accuracy from 1 to 100 is required, "
        f"or {plain}:METHOD{other}"
    )


def list_last_rounds(rounds: int) -> range:
    """Return the rounds, from 1, of a run of this many that count: the last fifth, at least one and at most ten."""
    return range(rounds - max(1, min(10, rounds // 5)) + 1, rounds + 1)


def find_last_values(history: Sequence[Mapping[str, float]], metric: str) -> dict[int, float]:
    """Return round -> value of a run's evaluations that count; rows without the metric are left out."""
    counted = list_last_rounds(int(history[-1]["round"]))
    return {int(row["round"]): row[metric] for row in history if row["round"] in counted and metric in row}


def mean(values: Collection[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def describe_accuracy(history: Sequence[Mapping[str, float]]) -> str:
    """Return the number that tables show of a run and the rounds behind it: `93.24 %, mean of rounds 91 to 100`.

    If personal models were tested, theirs follows: `82.10 %, mean of rounds 91 to 100; personal 94.16 %, round 100`.
    """
    told = []
    for whose, metric in (("", "test_accuracy"), ("personal ", "personal_accuracy")):
        if found := find_last_values(history, metric):
            told.append(f"{whose}{mean(found.values()):.2f} %, {describe_rounds([found])}")
    return "; ".join(told)


def describe_few_seeds(count: int, noun: str = "seed") -> str:
    """Return that so many seeds of a setting, fewer than `FEWEST_SEEDS`, compare no methods."""
    return (
        f"{format_count(count, noun)} a setting {'is' if count == 1 else 'are'} too few for an interval or a test; "
        f"{FEWEST_SEEDS} give the first, six or more serve every test"
    )


def describe_rounds(runs: Iterable[Iterable[int]]) -> str:
    """Return which rounds a mean is of, in words that are true for all runs: `mean of rounds 91 to 100`.

    runs: the rounds of each run that count and were evaluated, ascending.
    """
    counted = {tuple(rounds) for rounds in runs}
    windows = {list_last_rounds(rounds[-1]) for rounds in counted}
    if all(len(rounds) == 1 for rounds in counted) and counted:
        return f"round {counted.pop()[0]}" if len(counted) == 1 else "the last round"
    whole = all(len(rounds) == len(list_last_rounds(rounds[-1])) for rounds in counted)
    if len(windows) == 1:
        (window,) = windows
        return f"mean of {'rounds' if whole else 'the tests in rounds'} {window[0]} to {window[-1]}"
    if whole and len({len(window) for window in windows}) == 1:
        return f"mean of the last {len(windows.pop())} rounds"
    return "mean of the tests in the last fifth of the rounds, at most 10"
