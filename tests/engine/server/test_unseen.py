"""Clients that never train, and samples held out for validation and testing: what they are dealt, that training does
not notice them, and what is measured on them."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.cells.record import summarise_rounds
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.config import RunConfig
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Samples
from fedray.engine.loop import run
from fedray.engine.messages import ClientTask
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.result import Result, make_result
from fedray.engine.server.simulation import Simulation
from fedray.partitions.held_out import Split
from tests import small

METRICS = ("unseen_accuracy", "unseen_std", "unseen_worst10", "unseen_finetuned_accuracy")
TRAINING = {"rounds": 2, "local_epochs": 1, "batch_size": 20}


def problem(algorithm: Any = "fedavg", unseen: int = 2, total: int = 4, **sections: Any) -> Problem:
    given: dict[str, Any] = {"training": TRAINING, "evaluation": {"personal": {"epochs": 1}}, "partition": 0.5}
    return small.problem(algorithm, {"total": total, "per_round": 2, "unseen": unseen}, **{**given, **sections})


def worker(built: Problem) -> tuple[Simulation, Worker]:
    """A finished run, and a worker for its problem."""
    return small.finish(Simulation(built, InlineBackend())), Worker(built)


def test_unseen_clients_are_the_last_of_the_partition_and_training_does_not_notice_them() -> None:
    """Six clients are dealt samples once: as 4 and 2 they hold what they hold as 6; nothing is held out from the 2."""
    whole, apart = problem(unseen=0, total=6), problem()
    for i in range(6):
        split, k = (apart.split, i) if i < 4 else (apart.split.unseen, i - 4)
        assert split.train[k].tolist() == apart.split.dealt[i].tolist() == whole.split.train[i].tolist()
        assert split.test[k].tolist() == whole.split.test[i].tolist()
    held = problem(data={"name": "digits", "validation": {"fraction": 0.2}})
    assert len(held.split.validation) == 4
    assert held.split.unseen.train.sizes.tolist() == apart.split.unseen.train.sizes.tolist()
    assert (held.split.train.sizes < apart.split.train.sizes).all()
    # The same shards with and without unseen clients end at the same model, with the same metrics besides theirs.
    built = problem()
    config = small.config(clients=(4, 2), partition=0.5, training=TRAINING, evaluation={"personal": {"epochs": 1}})
    alone = Problem(config, built.data, Split(built.split.train, built.split.test))
    there, here = run(built, InlineBackend()), run(alone, InlineBackend())
    assert torch.equal(there.theta, here.theta)
    last = {key: value for key, value in there.history[-1].items() if key not in METRICS}
    assert (last, set(there.history[-1]) - set(last)) == (here.history[-1], set(METRICS))
    assert not any(client >= 4 for client in there.state.clients)


@pytest.mark.parametrize("test", [None, {}])
def test_their_samples_are_neither_trained_on_nor_tested_with_the_others(test: Any) -> None:
    """Measures of the whole training set leave out their samples; with `data.test` so does the global test."""
    built = problem(data={"name": "digits", "test": test})
    assert not np.isin(built.split.unseen.train.indices, built.evaluated["train"]).any()
    assert np.isin(built.split.train.indices, built.evaluated["train"]).all()
    assert np.isin(built.split.unseen.test.indices, built.evaluated["test"]).all() == (test is None)
    assert Worker(built).population.clients == 4
    assert Worker(built).population.total_samples == built.split.train.sizes.sum()


def test_the_numbers_are_those_of_the_clients() -> None:
    """accuracy: of the global model on each client's own test samples; finetuned: as any client's personal model, which
    without an epoch is the global one."""
    built = problem(evaluation={"personal": {"epochs": [0, 1]}})
    running, here = worker(built)
    result = make_result(running)
    found, table, summary = result.history[-1], result.table("clients"), result.summary()
    assert [summary[name] for name in METRICS] == [found[name] for name in METRICS]
    broadcast, network = running._make_personal_broadcast(2), here.network
    network.load(running.state.theta)
    received, tuned = [], []
    for k in range(2):
        x, y = here.test_samples.make_batch(built.split.unseen.test[k])
        received.append(100 * float((network(x).logits.argmax(1) == y).float().mean()))
        network.load(here.trainer.personalise(broadcast, ClientTask(4 + k, 0.5, Vectors()), 1).theta)
        tuned.append(100 * float((network(x).logits.argmax(1) == y).float().mean()))
        network.load(running.state.theta)
    assert found["unseen_accuracy"] == pytest.approx(np.mean(received))
    assert found["unseen_std"] == pytest.approx(abs(received[0] - received[1]) / 2)
    assert found["unseen_worst10"] == pytest.approx(min(received))
    finetuned = [found[f"unseen_finetuned_accuracy{of}"] for of in ("", "_e1", "_e0")]
    assert finetuned == pytest.approx([np.mean(tuned), np.mean(tuned), np.mean(received)])
    assert tuned != received
    rows = table[table["unseen"] == 1]
    assert (rows["client"].tolist(), rows["accuracy"].tolist()) == ([4, 5], pytest.approx(received))
    assert rows["finetuned_accuracy"].tolist() == pytest.approx(tuned)
    assert table[table["unseen"] == 0]["finetuned_accuracy"].isna().all()
    assert found["personal_accuracy"] == pytest.approx(table[table["unseen"] == 0]["accuracy"].mean())


@pytest.mark.parametrize("options", [{}, {"newcomer": "average"}])
def test_a_newcomer_of_fedper_trains_its_head_on_the_received_body(options: dict[str, Any]) -> None:
    """It starts with the initial head or the last cohort's average; the body is the server's, bit for bit."""
    running, here = worker(problem({"name": "fedper", **options}))
    head, task = running.layout.part("head") > 0, ClientTask(4, 1.0, Vectors())
    broadcast = running._make_personal_broadcast(2)
    received = here.trainer.start(broadcast, task).theta
    tuned = here.trainer.personalise(broadcast, task, 1, newcomer=True).theta
    average = options and running.state.server["head"]
    assert torch.equal(received[head], average if options else here.network.initial[head])
    assert torch.equal(tuned[~head], running.state.theta[~head])
    assert not torch.equal(tuned[head], received[head])


def test_a_newcomer_of_lg_fedavg_has_the_mean_statistics_of_the_last_cohort() -> None:
    """Both clients take part, with equal weights: the mean of what they keep."""
    model = {"name": "mlp", "hidden": [8], "feature_norm": "batch"}
    running, here = worker(problem({"name": "lg-fedavg", "newcomer": "average"}, total=2, model=model))
    here.trainer.start(running._make_personal_broadcast(2), ClientTask(2, 1.0, Vectors()))
    kept = [running.state.clients[i]["own_buffers"] for i in range(2)]
    torch.testing.assert_close(here.network.buffers, (kept[0] + kept[1]) / 2)
    assert not torch.allclose(here.network.buffers, here.network.initial_buffers)


def test_a_newcomer_of_ditto_trains_as_in_its_first_round() -> None:
    """Its v starts at x⁰ and takes the steps of a round of E epochs, as if the client were in the cohort then."""
    running, here = worker(problem({"name": "ditto", "lam": 0.5}))
    task, broadcast = ClientTask(5, 1.0, Vectors()), running._make_personal_broadcast(2)
    c, first = here.trainer.personalise(broadcast, task, 1, newcomer=True), here.network.initial
    assert torch.equal(here.trainer.start(broadcast, task).theta, running.state.theta)
    assert not any(torch.equal(c.theta, other) for other in (first, running.state.theta))
    assert torch.equal(here.trainer.personalise(broadcast, task, 0, newcomer=True).theta, first)
    assert torch.equal(here.trainer.personalise(broadcast, task, 1, newcomer=True).theta, c.theta), "draws are keyed"


def test_what_clients_would_receive_is_of_the_round_to_come() -> None:
    """FedGloSS after two of four warm-up rounds, from 0 to 2: at 2 · 2/4 from x; rate and draws are of round 2."""
    method = {"name": "fedgloss", "rho": 2.0, "start_rho": 0.0, "warmup": 4}
    running, _ = worker(problem(method, training={**TRAINING, "lr": 0.1, "lr_decay": 0.5}))
    told = running._make_personal_broadcast(2)
    assert float((told.theta - running.state.theta).norm()) == pytest.approx(1.0, rel=1e-4)
    assert (told.round, told.lr) == (1, 0.05)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_the_mixture_of_a_client_that_never_trained_has_mixed_statistics(alpha: float) -> None:
    """a of x⁰'s, 0 and 1, and 1 - a of the server's: of a newcomer before its first step, and of one never drawn."""
    model = {"name": "mlp", "hidden": [8], "feature_norm": "batch"}
    running, here = worker(problem({"name": "apfl", "alpha": alpha}, total=2, model=model))
    expected = alpha * here.network.initial_buffers + (1 - alpha) * running.state.buffers
    for client, newcomer in ((0, False), (2, True)):
        task = ClientTask(client, 1.0, Vectors())
        here.trainer.personalise(running._make_personal_broadcast(2), task, 0, newcomer=newcomer)
        torch.testing.assert_close(here.network.buffers, expected, rtol=0, atol=1e-6 if 0 < alpha < 1 else 0)
    assert not torch.allclose(running.state.buffers, here.network.initial_buffers)
    here.trainer.personalise(running._make_personal_broadcast(2), task, 1, newcomer=True)
    assert not torch.allclose(here.network.buffers, expected), "once it trained"


@pytest.mark.parametrize("method", ["fedala", "fedproto", "fedrod", "fedgela", "pfedme", "apfl", "fedas"])
def test_every_kind_of_method_tests_newcomers(method: str) -> None:
    last = run(problem(method, model=16), InlineBackend()).history[-1]
    assert all(0 <= last[name] <= 100 for name in METRICS)


def test_the_split_of_a_run_is_read_again(tmp_path: Path) -> None:
    """partition.npz lists the unseen clients last; a file of six clients does not serve 4 and 3."""
    first = problem(data={"name": "digits", "validation": {"fraction": 0.2}})
    of_file = {"name": "file", "path": str(tmp_path / "split.npz")}
    (tmp_path / "split.npz").write_bytes(first.pack_split())
    assert problem(partition=of_file).pack_split() == first.pack_split()
    with np.load(BytesIO(first.pack_split())) as file:
        assert {len(file[name]) for name in file.files if name.endswith("offsets")} == {7}
    with pytest.raises(UserError, match=r"^clients\.total \+ clients\.unseen: found 7; .* lists 6 clients for train"):
        problem(unseen=3, partition=of_file)


def config(algorithm: Any = "fedavg", validation: Any = None, test: Any = None, **evaluation: Any) -> RunConfig:
    data, evaluation = {"name": "digits", "validation": validation, "test": test}, {"every": 1, **evaluation}
    return small.config(algorithm, (8, 4), 16, 0.5, data=data, training=TRAINING, evaluation=evaluation)


def answered(problem: Problem, result: Result, training_samples: np.ndarray) -> tuple[Tensor, Tensor]:
    """Logits of the trained model on these samples, and their labels."""
    network = problem.build_network("cpu")
    network.load(result.theta)
    network.train(False)
    x, y = Samples(problem.data.x_train, problem.data.y_train, problem.data, "cpu").make_batch(training_samples)
    with torch.no_grad():
        return network(x).logits, y


@pytest.mark.parametrize("source", ["clients", "pool"])
def test_what_is_measured_on_the_held_out_samples(source: str) -> None:
    """As the trained model gives it, sample by sample; 0.45 of 1,437 are more than one chunk of 500."""
    problem = Problem.build(config(validation={"fraction": 0.45, "from": source}))
    result = run(problem, InlineBackend())
    last, held = result.history[-1], problem.split.validation
    assert len(held.indices) > 500
    logits, y = answered(problem, result, held.indices)
    is_right = (logits.argmax(1) == y).numpy()
    assert last["validation_accuracy"] == pytest.approx(100 * is_right.mean())
    assert last["validation_loss"] == pytest.approx(float(cross_entropy(logits, y)), rel=1e-5)
    if source == "pool":
        assert "validation_client_accuracy" not in last
        return
    own = np.array([100 * part.mean() for part in np.split(is_right, held.offsets[1:-1]) if len(part)])
    assert last["validation_client_accuracy"] == pytest.approx(own.mean())
    assert last["validation_client_std"] == pytest.approx(own.std())
    assert last["validation_client_worst10"] == pytest.approx(own.min()), "a tenth of 8 clients is one"


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep"])
@pytest.mark.parametrize("source", ["clients", "pool"])
def test_training_never_sees_them(algorithm: str, source: str) -> None:
    """Black images in their place change what is measured on them, and nothing else."""
    problem = Problem.build(config(algorithm, {"fraction": 0.2, "from": source}, personal={"epochs": 1, "every": 1}))
    x = problem.data.x_train.copy()
    x[problem.split.validation.indices] = 0
    blackened = replace(problem, data=replace(problem.data, x_train=x))
    ours, theirs = run(problem, InlineBackend()), run(blackened, InlineBackend())
    assert ours.state.digest() == theirs.state.digest()
    for row, other in zip(ours.history, theirs.history, strict=True):
        changed = {name for name in row if row[name] != other[name]}
        assert changed
        assert all(name.startswith("validation_") for name in changed), changed


def test_measuring_changes_nothing_and_train_accuracy_is_of_what_is_trained_on() -> None:
    """A run with the same shards and no held-out samples has the same state; all 1,437 less a fifth are left."""
    problem = Problem.build(config(validation={"fraction": 0.2}, train=True))
    assert len(problem.evaluated["train"]) == 1437 - len(problem.evaluated["validation"])
    assert Worker(problem).population.total_samples == len(problem.evaluated["train"]), "what methods weigh by"
    plain, result = Problem(config(train=True), problem.data, Split(problem.split.train)), run(problem, InlineBackend())
    assert result.state.digest() == run(plain, InlineBackend()).state.digest()
    logits, y = answered(problem, result, problem.evaluated["train"])
    assert result.history[-1]["train_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))
    assert "validation" not in Problem.build(config(), Digits().load()).evaluated
    dealt = problem.split.train.take(0, 2)  # the other samples are nobody's
    assert Problem(config(), problem.data, Split(dealt)).evaluated["train"].tolist() == sorted(dealt.indices)


def test_own_test_samples_are_what_is_tested_and_never_trained_on() -> None:
    """The global model on all clients' test samples, personal models on their own; black images there change only that.

    Weighted by test samples, the clients' accuracies of the same global model (no epoch of fine-tuning; of
    FedExP the mean of the last two) are its own."""
    personal, test = {"epochs": 0, "every": 1}, {"fraction": 0.3}
    asked = config("fedexp", personal=personal, train=True, probes=["forgetting"], test=test)
    problem = Problem.build(asked)
    assert len(problem.evaluated["train"]) + len(problem.split.test.indices) == 1797
    result = run(problem, InlineBackend())
    logits, y = answered(problem, result, problem.split.test.indices)
    last = result.history[-1]
    assert last["test_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))
    assert last["personal_weighted_accuracy"] == pytest.approx(last["test_accuracy"])
    parts = np.split((logits.argmax(1) == y).numpy(), problem.split.test.offsets[1:-1])
    assert last["personal_accuracy"] == pytest.approx(np.mean([100 * part.mean() for part in parts if len(part)]))
    assert result.table("confusion").drop(columns="class").to_numpy().sum() == len(problem.split.test.indices)
    x = problem.data.x_train.copy()
    x[problem.split.test.indices] = 0
    blackened = run(replace(problem, data=replace(problem.data, x_train=x, x_test=x)), InlineBackend())
    assert blackened.state.digest() == result.state.digest()
    assert blackened.history[-1]["train_accuracy"] == last["train_accuracy"]
    assert blackened.history[-1]["test_accuracy"] != last["test_accuracy"]
    with np.load(BytesIO(problem.pack_split())) as split:
        np.testing.assert_array_equal(split["test_indices"], problem.split.test.indices)
        assert not np.intersect1d(split["train_indices"], split["test_indices"]).size


def test_best_is_selected_on_the_held_out_samples() -> None:
    """Round 2 is best on the held-out samples, round 3 on the test set; of equal ones the first counts."""
    rows = [
        {"round": 1.0, "test_accuracy": 60.0, "validation_accuracy": 50.0, "personal_accuracy": 70.0},
        {"round": 2.0, "test_accuracy": 61.0, "validation_accuracy": 58.0},
        {"round": 3.0, "test_accuracy": 69.0, "validation_accuracy": 58.0},
        {"round": 4.0, "test_accuracy": 62.0, "validation_accuracy": 55.0, "personal_accuracy": 65.0},
    ]
    found = summarise_rounds(rows)
    assert (found["best_round"], found["best_test_accuracy"], found["best_validation_accuracy"]) == (2, 61, 58)
    assert found["best_personal_accuracy"] == 65, "of the rounds that measure it"
    assert summarise_rounds([row | {"personal_accuracy_e5": 7.0} for row in rows])["best_personal_accuracy_e5"] == 7
    plain = [{key: value for key, value in row.items() if key != "validation_accuracy"} for row in rows]
    found = summarise_rounds(plain)
    assert (found["best_round"], found["best_test_accuracy"], found["best_personal_accuracy"]) == (3, 69, 70)
