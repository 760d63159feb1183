"""The grammar of metrics' names."""

import pytest

from fedray.cells.metric import BY_ROUND, LOWER_IS_BETTER, OF_RUN, ROUNDS_TO, SLOWDOWN, Metric
from fedray.common.errors import UserError


@pytest.mark.parametrize(
    ("name", "plain", "prefix", "epochs", "target", "smaller"),
    [
        ("test_accuracy", "test_accuracy", "", "", None, False),
        ("last10_test_loss", "test_loss", "last10_", "", None, True),
        ("best_personal_accuracy_e5", "personal_accuracy", "best_", "5", None, False),
        ("final_personal_std_e10", "personal_std", "final_", "10", None, True),
        ("personal_best", "personal_best", "", "", None, False),
        ("accuracy_e5", "accuracy_e5", "", "", None, False),  # fine-tuning is for personal models
        ("best_round", "best_round", "", "", None, False),
        ("rounds_to:80", "rounds_to", "", "", 80.0, True),
        ("rounds_to:fedavg", "rounds_to", "", "", "fedavg", True),
    ],
)
def test_parts_of_a_name(
    name: str, plain: str, prefix: str, epochs: str, target: float | str | None, smaller: bool
) -> None:
    found = Metric.parse(name)
    assert found == Metric(name, plain, prefix, epochs, target)
    assert found.is_smaller_better == smaller


@pytest.mark.parametrize(
    ("name", "rounds", "target", "reference", "smaller"),
    [
        ("speedup:80/fedavg", "rounds_to:80", 80.0, "fedavg", False),
        ("slowdown:79.5/fedsam ρ=0.1", "rounds_to:79.5", 79.5, "fedsam ρ=0.1", True),
        ("speedup:fedavg/fedtoga", "rounds_to:fedavg", "fedavg", "fedtoga", False),
    ],
)
def test_ratios_of_rounds(name: str, rounds: str, target: float | str, reference: str, smaller: bool) -> None:
    found = Metric.parse(name)
    assert (found.rounds, found.target, found.reference) == (rounds, target, reference)
    assert found.is_smaller_better == smaller
    with pytest.raises(UserError, match=f"--metric: found '{name}', which compares runs already; {rounds} is allowed"):
        found.refuse_ratio("--metric")
    Metric.parse(rounds).refuse_ratio("--metric")


@pytest.mark.parametrize("name", ["rounds_to", "rounds_to:", "rounds_to:0", "rounds_to:101", "rounds_to:-3"])
def test_targets_that_no_run_can_have(name: str) -> None:
    with pytest.raises(UserError, match=f"claims.one.metric: found '{name}'; rounds_to:PERCENT"):
        Metric.parse(name, "claims.one.metric")


@pytest.mark.parametrize("name", ["speedup", "slowdown:80", "speedup:80/", "slowdown:/fedavg", "speedup:0/fedavg"])
def test_ratios_need_a_target_and_a_method(name: str) -> None:
    form = f"{name.partition(':')[0]}:PERCENT/METHOD with a test accuracy up to 100 is required"
    with pytest.raises(UserError, match=f"--metric: found '{name}'; {form}"):
        Metric.parse(name)


def test_every_metric_is_best_at_one_end() -> None:
    """A new metric belongs to one of these lists: nothing is read off its letters."""
    losses = {"validation_loss", "test_loss", "train_loss"}
    deviations = {
        "personal_std", "personal_train_std", "unseen_std", "validation_client_std", "validation_personal_std",
    }  # fmt: skip
    costs = {
        "seconds", "seconds_per_round", "seconds_per_round_with_evaluation", "megabytes_down", "megabytes_up",
        "megabytes_sent", "megabytes_kept_by_client", "megabytes_held_by_client", "megabytes_kept_by_server",
        "relative_flops",
    }  # fmt: skip
    accuracies = {
        f"{name}_accuracy"
        for name in (
            "test", "test_balanced", "train", "personal", "personal_weighted", "personal_train", "generic", "unseen",
            "unseen_finetuned", "validation", "validation_client", "validation_personal",
        )
    }  # fmt: skip
    tails = {
        f"{name}_worst10"
        for name in ("personal", "personal_train", "unseen", "validation_client", "validation_personal")
    }
    clients = {"personal_best", "personal_worst", "personal_train_best", "personal_train_worst"}
    assert BY_ROUND.keys() | OF_RUN.keys() == (
        losses | deviations | costs | accuracies | tails | clients | {"test_macro_f1", "test_auc"}
    )
    assert losses | deviations | costs | {ROUNDS_TO, SLOWDOWN} == LOWER_IS_BETTER


@pytest.mark.parametrize("name", ["gloss_coverage", "lossless_share", "backgrounds_seen", "milliseconds_saved"])
def test_letters_of_a_name_say_nothing(name: str) -> None:
    assert not Metric.parse(f"last10_{name}").is_smaller_better
    assert not Metric.parse(f"impersonal_{name}").is_of_clients


def test_what_does_not_look_at_the_test_set() -> None:
    held_out = [name for name in ("last10_validation_client_accuracy", "best_test_accuracy", "final_personal_accuracy")]
    assert [Metric.parse(name).is_on_test_set for name in held_out] == [False, True, True]
