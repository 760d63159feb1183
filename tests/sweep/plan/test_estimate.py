"""The cost of planning a sweep, counted, and `fedray sweep --dry-run --estimate`, counted by hand."""

import gc
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.gradients import measure_seconds
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.sweep import estimate
from fedray.sweep.draws import count_gradients
from fedray.sweep.estimate import Key, make_key, measure_pace
from fedray.sweep.plan import KEPT_PROBLEMS, Problems, list_distinct, make_sheet
from fedray.sweep.sweep import Sweep
from tests import small
from tests.conftest import Call, each

BASE = small.sections(clients=(10, 3), partition=0.5, runtime={})


def sweep(seeds: int, **grid: Any) -> Sweep:
    """20 cells a seed."""
    axes = {"algorithm": ["fedavg", "scaffold"], "training.lr": [0.01 * (k + 1) for k in range(10)]}
    return Sweep.model_validate({"name": "x", "base": BASE, "grid": axes | grid | {"seed": list(range(seeds))}})


DIFFERENT: list[dict[str, Any]] = [
    *({"seed": 0}, {"seed": 1}, {"partition": "iid"}, {"clients.total": 12}),
    *({"data.validation": {"fraction": 0.3}}, {"evaluation.personal.split": "share"}),
    {"model": {"name": "sl_vit", "dim": 8, "depth": 1, "heads": 1, "resize": 16}},
    {"clients.unseen": 3},
    {"training.lr": 0.5},
]


def test_cells_share_a_split_only_where_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell has the samples that it would have alone, and its own configuration; the latest two splits are kept."""
    monkeypatch.setattr("fedray.sweep.plan.KEPT_PROBLEMS", 2)
    base = BASE | {"algorithm": "fedavg", "data": {"name": "digits"}, "evaluation": {"personal": {}}}
    problems = Problems()
    sheet, _ = make_sheet(Sweep.model_validate({"name": "x", "base": base, "cases": DIFFERENT}), problems)
    splits = []
    for cell in sheet.cells.values():
        given, alone = problems.get_problem(cell), Problem.build(cell.run)
        assert given.config is cell.run
        assert (given.data.input_shape, given.pack_split()) == (alone.data.input_shape, alone.pack_split())
        splits.append(given.pack_split())
    assert (len(splits), len(problems._problems)) == (len(DIFFERENT), 2)
    assert len(set(splits)) == len(DIFFERENT) - 2  # the model and the learning rate deal nothing out


def test_every_kind_is_tried_before_anything_starts() -> None:
    """The second of two models takes texts, the data are images; one of two numbers of clients is above 1,437."""
    with pytest.raises(UserError, match="char_lstm"):
        make_sheet(sweep(1, model=["mlp", "char_lstm"]), Problems())
    with pytest.raises(UserError, match=r"partition\.min_size: 2000 clients"):
        make_sheet(sweep(1, **{"clients.total": [10, 2000]}), Problems())


def test_settings_that_agree_in_four_digits_have_labels_of_their_own() -> None:
    """Else MLflow would average them. Labels that four digits tell apart stay, and that of a cell that comes twice."""
    grid = {"training.lr": [0.1, 0.10001, 0.1000001, 0.2], "seed": [0, 1]}
    found = Sweep.model_validate({"name": "x", "base": BASE | {"algorithm": "fedavg"}, "grid": grid})
    labels = [cell.label for cell in make_sheet(found, Problems())[0].cells.values()]
    named = ("lr=0.1", "lr=0.1 #2", "lr=0.1 #3", "lr=0.2")
    assert labels == [f"fedavg dirichlet(0.5) {words} s{seed}" for words in named for seed in (0, 1)]
    cases = [{"training.lr": 0.12341, "seed": 0}, {"training.lr": 0.12342, "seed": 1}]  # a rate for each seed
    found = Sweep.model_validate({"name": "x", "base": BASE | {"algorithm": "fedavg"}, "cases": cases})
    settings = [cell.setting for cell in make_sheet(found, Problems())[0].cells.values()]
    assert settings == ["fedavg dirichlet(0.5) lr=0.1234", "fedavg dirichlet(0.5) lr=0.1234 #2"]
    grid = {"data.validation": [None, {}], "evaluation": [{}, {"personal": {}}]}
    found = Sweep.model_validate({"name": "x", "base": BASE | {"algorithm": "fedavg"}, "grid": grid})
    labels = [cell.label for cell in make_sheet(found, Problems())[0].cells.values()]
    named = ("", "personal={} ", "validation={} ", "validation={} personal={} ")
    assert labels == [f"fedavg dirichlet(0.5) {words}s0" for words in named]
    grid = {"clients.per_round": [1, 1.0], "training.lr": [0.1, 0.2], "seed": [0, 1]}  # one client, and everyone
    found = Sweep.model_validate({"name": "x", "base": BASE | {"algorithm": "fedavg"}, "grid": grid})
    labels = [cell.label for cell in make_sheet(found, Problems())[0].cells.values()]
    named = ("1 lr=0.1", "1 lr=0.2", "1.0 lr=0.1", "1.0 lr=0.2")
    assert labels == [f"fedavg dirichlet(0.5) per_round={words} s{seed}" for words in named for seed in (0, 1)]


def test_cells_are_numbered_alike_with_and_without_data() -> None:
    """Threads are part of a cell, actors are not, and the default is no second cell."""
    for key, values, count in (
        *(("runtime.threads", [1, 2], 2), ("runtime.actors", [1, 2], 1)),
        ("training.channels_last", [None, False], 1),
    ):
        asked = Sweep.model_validate({"name": "x", "base": BASE | {"algorithm": "fedavg"}, "grid": {key: values}})
        assert len(list_distinct(asked)) == len(make_sheet(asked, Problems())[0].cells) == count


LATE = {"every": 6, "last": 1}
EPOCHS = {"rounds": 6, "local_epochs": 2, "batch_size": 20}
RUN = small.sections(clients=(10, 4), model="mlp", training=EPOCHS, evaluation=LATE, runtime={})


def run(**sections: Any) -> RunConfig:
    """1,437 digits over 10 clients: 144 each (one more than for most), 8 batches of 20; 360 test images are 18."""
    return RunConfig.parse(RUN | sections)


TRAINING = 6 * 4 * 2 * 8
"""Rounds x cohort x epochs x batches."""
TUNING = 2 * 6 + 2 * 10 * 5 * 8
"""Twice: an evaluation, and clients x epochs x batches."""
MLP, UNSEEN = {"name": "mlp", "hidden": [16]}, {"personal": {"epochs": [1, 5]}}


@each(
    ({}, TRAINING + 18 / 3),  # one evaluation, a forward pass is a third
    ({"clients": {"total": 10, "cohorts": [[0], [1, 2], [3], [4], [5], [6], [7, 8]]}}, 7 / 24 * TRAINING + 6),
    ({"algorithm": "fedsam"}, 2 * TRAINING + 6),
    ({"algorithm": "fedntd"}, TRAINING * (1 + 1 / 3) + 6),  # predictions of the global model
    ({"algorithm": "mimelite"}, TRAINING + 6 * 4 * 8 + 6),  # a pass over the shard per client and round
    ({"evaluation": {"every": 4, "last": 2}}, TRAINING + 3 * 6),  # rounds 4, 5, 6
    ({"evaluation": LATE | {"train": True}}, TRAINING + 6 + 1437 / 20 / 3),
    # Twice all clients tune for one and then five epochs in rounds 3 and 6; and for five in rounds 4 and 6, as a
    # round whose personal models are tested is evaluated, for any `every`.
    ({"evaluation": LATE | {"every": 3, "personal": {"epochs": [1, 5], "every": 3}}}, TRAINING + TUNING + 2 * 10 * 8),
    ({"evaluation": LATE | {"personal": {"epochs": 5, "every": 4}}}, TRAINING + TUNING),
    # All clients make one round of local training.
    ({"algorithm": "fedge", "model": MLP, "evaluation": LATE | {"personal": {}}}, TRAINING + 6 + 10 * 2 * 8),
    ({"algorithm": "local-only"}, TRAINING + 10 * 6),  # no global model: all clients' are tested
    (  # also all eight that train here; each of two newcomers has one and then five epochs
        {"algorithm": "fedper", "clients": {"total": 8, "per_round": 4, "unseen": 2}, "evaluation": LATE | UNSEEN},
        TRAINING + 8 * 6 + 2 * (1 + 5) * 8,
    ),
    ({"data": {"name": "digits", "test": {"fraction": 0.5}}}, 6 * 4 * 2 * 5 + 1797 / 2 / 20 / 3),  # 90 of 1797 each
    ({"data": "femnist"}, None),
)
def test_gradients_counted_by_hand(sections: dict[str, Any], expected: float | None) -> None:
    assert count_gradients(run(**sections)) == (expected if expected is None else pytest.approx(expected))


def test_a_model_is_measured_as_the_data_shape_it() -> None:
    """Images are resized for LeNet; a batch is no larger than a shard."""
    lenet = make_key(run(model="lenet", training={"batch_size": 500}))
    assert (lenet.shape, lenet.classes, lenet.batch) == ((1, 32, 32), 10, 144)
    small = Key('{"name": "mlp", "hidden": [4]}', (1, 8, 8), 10, 2)
    large = Key('{"name": "mlp", "hidden": [2000]}', (1, 32, 32), 10, 200)
    assert 0 < measure_seconds(small, "cpu") < measure_seconds(large, "cpu")


@pytest.mark.parametrize("name", ["fedtoga", "mimelite", "fedge", "local-only"])
def test_every_kind_of_method_is_timed_by_its_own_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of the engine on random data: methods with states, passes over shards, parts, no global model."""
    monkeypatch.setattr(estimate, "SPAN", 0.05)
    one = run(algorithm=name, model=MLP)
    seconds, slowdown = measure_pace(one, make_key(one), 144, "cpu")
    assert 0 < seconds < 1
    assert slowdown >= 1


def test_the_method_with_the_most_work_is_timed() -> None:
    """FedSAM and FedTOGA take two gradients a step, FedAvg one; FedTOGA also keeps and sends more vectors."""
    listed = [run(algorithm=name) for name in ("fedavg", "fedtoga", "fedsam")]
    assert max(listed, key=lambda one: estimate.rank_work(one, 144)).algorithm.name == "fedtoga"


def measure_briefly(*given: Any) -> Any:
    """Measure for a moment, in a process of its own."""
    estimate.SPAN = 0.1
    return measure_pace(*given)


def test_cells_that_run_at_a_time_are_timed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of their own, which wait for each other."""
    monkeypatch.setattr(estimate, "measure_pace", measure_briefly)
    seconds, _ = estimate.measure_together(run(), make_key(run()), 144, "cpu", 2)
    assert 0 < seconds < 1


@pytest.mark.parametrize(("at_a_time", "seconds"), [(1, 2 * 0.7), (2, 2 * 2 * 0.5), (4, 2 * 4 * 0.5)])
def test_short_cells_wait_for_the_process(at_a_time: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as slow as on an idle machine. Alone a cell takes its 0.7 s; of each at a time the process takes 0.5 s."""
    monkeypatch.setattr(estimate, "measure_together", lambda *_: (1e-9, 2.0))
    asked = Sweep.parse({"name": "x", "base": RUN, "grid": {"seed": [0, 1, 2, 3]}})
    found, _ = estimate.print_estimate("x", [run for run, _ in list_distinct(asked).values()], at_a_time)
    assert found == pytest.approx([seconds] * 4, rel=1e-5)


def test_own_arrays_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep on arrays of the user's own costs something."""
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((120, 5, 7), np.uint8), np.arange(120) % 3
    np.savez("own.npz", x_train=images[:90], y_train=labels[:90], x_test=images[90:], y_test=labels[90:])
    monkeypatch.setattr(estimate, "SPAN", 0.3)
    asked = {"name": "own", "base": RUN | {"data": {"name": "npz", "path": "own.npz"}}, "grid": {"seed": [0, 1]}}
    seconds, start = estimate.print_estimate("own", [run for run, _ in list_distinct(Sweep.parse(asked)).values()])
    assert start >= estimate.START
    assert min(filter(None, seconds)) > estimate.CELL, "a cell's own start counts"
    out = capsys.readouterr().out
    row = re.search(r"^2 +mlp, 1x5x7, 3 classes, batches of 9 +fedavg +(\S+) +(\S+) +(\S+)", out, re.MULTILINE)
    assert row is not None, out
    assert float(row[1]) == pytest.approx(2 * (48 + 30 / 27), rel=1e-2)
    hours = re.search(r"own: (\S+) core-hours of gradients on ", out)
    assert hours is not None
    assert float(hours[1]) == pytest.approx(float(row[1]) * float(row[2]) / 3600, rel=0.02)
    assert float(hours[1]) > 0
    assert "without" not in out


def test_the_command_needs_no_data(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cases = [{}, {"clients.per_round": 4}, {"data": "femnist"}]
    sweep = {"name": "x", "base": RUN | {"data": "mnist"}, "cases": cases, "grid": {"seed": [0, 1]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    monkeypatch.setattr(estimate, "SPAN", 0.3)
    out = call("sweep", "sweep.yaml", "--dry-run", "--estimate", "--max-concurrent", "1").done
    assert re.search(r"^2 +mlp, 1x28x28, 10 classes, batches of 20 ", out, re.MULTILINE), "equal cells are one"
    assert "x: " in out
    assert "without 2 cells" in out
    assert "measured now with 1 cell at a time; " in out, "--max-concurrent 1"
    assert re.search(r"^measured at a load of \d+\.\d on \d+ CPUs", out, re.MULTILINE)
    assert re.search(r"^4 cells ask for as many actors as fit of 1 CPU each: 1 at a time, 4 waves$", out, re.MULTILINE)
    said = (
        r"^2 cells: \S+ (h|min|s) of wall clock, \S+ core-hours reserved, busy or not \(with each cell's start and "
        r"wait for its turn\), without communication; Ray's start, \S+ (min|s), is included$"
    )
    assert re.search(said, out, re.MULTILINE)
    assert "2 cells: hours not measured" in out
    assert not list(tmp_path.glob("mlflow*"))


def test_the_driver_holds_little_of_a_cell() -> None:
    """At most 20 kB for each of 100 cells more, and only the latest few split data sets."""
    make_sheet(sweep(1), Problems())  # imports and data
    held = list[int]()
    for seeds in (5, 10):
        tracemalloc.start()
        try:
            problems = Problems()
            planned = make_sheet(sweep(seeds), problems)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert len(planned[0].cells) == 200
    assert (held[1] - held[0]) / 100 < 20_000
    for cell in planned[0].cells.values():
        problems.get_problem(cell)
    assert len(problems._problems) == KEPT_PROBLEMS
