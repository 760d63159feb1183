"""`fedray sweep --dry-run --estimate`: counted by hand, measured in passing."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.gradients import measure_seconds
from fedray.common.entry import run_command
from fedray.config import RunConfig
from fedray.sweep import estimate
from fedray.sweep.draws import count_gradients
from fedray.sweep.estimate import Key, make_key, measure_pace
from fedray.sweep.sweep import Sweep
from tests import small

RUN = small.sections(
    clients=(10, 4),
    model="mlp",
    training={"rounds": 6, "local_epochs": 2, "batch_size": 20},
    evaluation={"every": 6, "last": 1},
    runtime={},
)


def run(**sections: Any) -> RunConfig:
    """1,437 digits over 10 clients: 144 each (one more than for most), 8 batches of 20; 360 test images are 18."""
    return RunConfig.parse(RUN | sections)


TRAINING = 6 * 4 * 2 * 8
"""Rounds x cohort x epochs x batches."""


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, TRAINING + 18 / 3),  # one evaluation, a forward pass is a third
        ({"algorithm": "fedsam"}, 2 * TRAINING + 6),
        ({"algorithm": "fedntd"}, TRAINING * (1 + 1 / 3) + 6),  # predictions of the global model
        ({"algorithm": "mimelite"}, TRAINING + 6 * 4 * 8 + 6),  # a pass over the shard per client and round
        ({"evaluation": {"every": 2, "last": 1}}, TRAINING + 3 * 6),  # rounds 2, 4, 6
        ({"evaluation": {}}, TRAINING + 6 * 6),  # the last ten rounds are, so all six
        ({"evaluation": {"every": 4, "last": 2}}, TRAINING + 3 * 6),  # rounds 4, 5, 6
        ({"evaluation": {"every": 6, "last": 1, "train": True}}, TRAINING + 6 + 1437 / 20 / 3),
        (
            {"evaluation": {"every": 3, "last": 1, "personal": {"epochs": [1, 5], "every": 3}}},
            TRAINING + 2 * 6 + 2 * 10 * 5 * 8,
        ),  # twice all clients tune for 5 epochs
        (
            {"evaluation": {"every": 6, "last": 1, "personal": {"epochs": 5, "every": 4}}},
            TRAINING + 2 * 6 + 2 * 10 * 5 * 8,
        ),  # rounds 4 and 6: a round whose personal models are tested is evaluated, for any `every`
        (
            {
                "algorithm": "fedge",
                "model": {"name": "mlp", "hidden": [16]},
                "evaluation": {"every": 6, "last": 1, "personal": {}},
            },
            TRAINING + 6 + 10 * 2 * 8,
        ),  # all clients make one round of local training
        ({"algorithm": "local-only"}, TRAINING + 10 * 6),  # no global model: all clients' are tested
        ({"data": "femnist"}, None),
    ],
)
def test_gradients_counted_by_hand(sections: dict[str, Any], expected: float | None) -> None:
    found = count_gradients(run(**sections))
    assert found == (expected if expected is None else pytest.approx(expected))


def test_a_model_is_measured_as_the_data_shape_it() -> None:
    """Images are resized for LeNet; a batch is no larger than a shard."""
    lenet = make_key(run(model="lenet", training={"batch_size": 500}))
    assert (lenet.shape, lenet.classes, lenet.batch) == ((1, 32, 32), 10, 144)
    small = Key('{"name": "mlp", "hidden": [4]}', (1, 8, 8), 10, 2)
    large = Key('{"name": "mlp", "hidden": [2000]}', (1, 32, 32), 10, 200)
    assert 0 < measure_seconds(small, "cpu") < measure_seconds(large, "cpu")


@pytest.mark.parametrize("name", ["fedavg", "fedtoga", "fedntd", "mimelite", "fedge", "local-only"])
def test_every_kind_of_method_is_timed_by_its_own_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of the engine on random data: methods with states, with predictions, with passes over the shard, with
    parts of the model, and without a global model."""
    monkeypatch.setattr(estimate, "SPAN", 0.05)
    one = run(algorithm=name, model={"name": "mlp", "hidden": [16]})
    pace = measure_pace(one, make_key(one), 144, "cpu")
    assert 0 < pace.seconds < 1
    assert pace.slowdown >= 1


def test_the_method_with_the_most_work_is_timed() -> None:
    """FedSAM and FedTOGA take two gradients a step, FedAvg one; FedTOGA also keeps and sends more vectors."""
    listed = [estimate.Counted(run(algorithm=name), 144, 1.0) for name in ("fedavg", "fedtoga", "fedsam")]
    assert max(listed, key=estimate.rank_work).run.algorithm.name == "fedtoga"


def measure_briefly(*given: Any) -> Any:
    """Measure for a moment, in a process of its own."""
    estimate.SPAN = 0.1
    return measure_pace(*given)


def test_cells_that_run_at_a_time_are_timed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of their own, which wait for each other."""
    monkeypatch.setattr(estimate, "measure_pace", measure_briefly)
    found = estimate.measure_together(run(), make_key(run()), 144, "cpu", 2)
    assert 0 < found.seconds < 1


def test_a_sweep_on_your_own_arrays_costs_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((120, 5, 7), np.uint8), np.arange(120) % 3
    np.savez("own.npz", x_train=images[:90], y_train=labels[:90], x_test=images[90:], y_test=labels[90:])
    monkeypatch.setattr(estimate, "SPAN", 0.3)
    seconds, start = estimate.print_estimate(
        Sweep.parse(
            {"name": "own", "base": RUN | {"data": {"name": "npz", "path": "own.npz"}}, "grid": {"seed": [0, 1]}}
        )
    )
    assert start >= estimate.START
    assert min(filter(None, seconds)) > estimate.CELL, "a cell's own start counts"
    out = capsys.readouterr().out
    row = re.search(r"^2 +mlp, 1x5x7, 3 classes, batches of 9 +fedavg +(\S+) +(\S+) +(\S+)", out, re.MULTILINE)
    assert row is not None, out
    assert float(row[1]) == pytest.approx(2 * (48 + 30 / 27), rel=1e-2)
    hours = re.search(r"own: (\S+) core-hours", out)
    assert hours is not None
    assert float(hours[1]) == pytest.approx(float(row[1]) * float(row[2]) / 3600, rel=0.02)
    assert float(hours[1]) > 0
    assert "without" not in out


def test_the_command_needs_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "x",
                "base": RUN | {"data": "mnist"},
                "cases": [{}, {"clients.per_round": 4}, {"data": "femnist"}],
                "grid": {"seed": [0, 1]},
            }
        )
    )
    monkeypatch.setattr(estimate, "SPAN", 0.3)
    monkeypatch.setattr(
        "sys.argv", ["fedray", "sweep", "sweep.yaml", "--dry-run", "--estimate", "--max-concurrent", "1"]
    )
    from fedray.cli.main import app

    with pytest.raises(SystemExit) as stop:
        run_command(app)
    out = capsys.readouterr().out
    assert stop.value.code == 0, out
    assert re.search(r"^2 +mlp, 1x28x28, 10 classes, batches of 20 ", out, re.MULTILINE), "equal cells are one"
    assert "x: " in out
    assert "without 2 cells" in out
    assert "measured now with 1 cell at a time; " in out, "--max-concurrent 1"
    assert re.search(r"^measured at a load of \d+\.\d on \d+ CPUs", out, re.MULTILINE)
    assert re.search(
        r"^4 cells ask for as many actors as fit of 1 CPU each: 1 at a time, 4 wave\(s\)$", out, re.MULTILINE
    )
    assert re.search(
        r"^2 cells: \S+ (h|min|s) of wall clock, \S+ core-hours reserved, without communication; Ray's start, "
        r"\S+ (min|s), is included$",
        out,
        re.MULTILINE,
    )
    assert "2 cells: hours not measured" in out
    assert not list(tmp_path.glob("mlflow*"))
