"""A mistake in a call of the Python functions is a UserError of one line that names the argument."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import fedray
from fedray.common.errors import UserError
from fedray.tracking.store import open_store
from tests import small

RUN = small.sections(model=4, training={"rounds": 1, "local_epochs": 1})
SWEEP = {"name": "x", "base": {key: value for key, value in RUN.items() if key != "runtime"}}
CONFIG = "Mapping[str, Any] | RunConfig | str | Path is required"
FLOATS = np.random.default_rng(0).standard_normal((24, 16), dtype=np.float32)
ARRAYS = {"x_train": FLOATS, "y_train": np.arange(24) % 3, "x_test": FLOATS[:6], "y_test": np.arange(6) % 3}


class NoRepr:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def simulate(config: Any = RUN, **options: Any) -> Any:
    return fedray.simulate(config, progress=False, **options)


def on(**arrays: Any) -> Any:
    """A run on `ARRAYS`, some of them changed."""
    return simulate(RUN | {"data": ARRAYS | arrays})


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: simulate(42), f"simulate: config: found 42; {CONFIG}"),
    "nothing": (lambda: simulate(None), f"simulate: config: found None; {CONFIG}"),
    "pairs": (lambda: simulate([("a", 1)]), f"simulate: config: found [('a', 1)]; {CONFIG}"),
    "keys are numbers": (lambda: simulate({1: 2}), f"simulate: config: found {{1: 2}}; {CONFIG}"),
    "path": (lambda: simulate("a\0"), "simulate: config: found 'a\\x00'; a path has no zero characters"),
    "track": (lambda: simulate(track=7), "simulate: track: found 7; str | None is required"),
    "track nothing": (
        lambda: simulate(track=" "),
        "simulate: track: found ' '; up to 250 printable characters are required",
    ),
    "track lines": (
        lambda: simulate(track="a\nb"),
        "simulate: track: found 'a\\nb'; up to 250 printable characters are required",
    ),
    "evaluated": (
        lambda: simulate(evaluated=3),
        "simulate: evaluated: found 3; Callable[[dict[str, float]], None] is required",
    ),
    "profile": (lambda: simulate(profile=True), "simulate: profile: found True; Profile | None is required"),
    "data": (lambda: simulate(data=NoRepr()), "simulate: data: found <NoRepr>; Dataset | None is required"),
    "checkpoints": (lambda: simulate(checkpoints=3), "simulate: checkpoints: found 3; str | Path | None is required"),
    "checkpoints 0": (
        lambda: simulate(checkpoints="a\0"),
        "simulate: checkpoints: found 'a\\x00'; a path has no zero characters",
    ),
    "sweep": (lambda: fedray.run_sweep(None), "run_sweep: sweep: found None; str | Path | Mapping[str, Any]…"),  # type: ignore[arg-type]
    "only": (
        lambda: fedray.run_sweep(SWEEP, only="12"),
        "run_sweep: only: found '12'; Sequence[str] is required",
    ),
    "only numbers": (
        lambda: fedray.run_sweep(SWEEP, only=[12]),  # type: ignore[list-item]
        "run_sweep: only: found [12]; Sequence[str] is required",
    ),
    "trials 0": (
        lambda: fedray.run_sweep(SWEEP, max_concurrent=0),
        "run_sweep: max_concurrent: found 0; at least 1 is required",
    ),
    "trials true": (
        lambda: fedray.run_sweep(SWEEP, max_concurrent=True),
        "run_sweep: max_concurrent: found True; int | None is required",
    ),
    "changes": (
        lambda: fedray.run_sweep(SWEEP, changes=3),  # type: ignore[arg-type]
        "run_sweep: changes: found 3; Mapping[str, Any] | None is required",
    ),
    "load": (lambda: fedray.load(7), "load: run: found 7; str is required"),  # type: ignore[arg-type]
    "log_model": (lambda: fedray.log_model(None), "log_model: run: found None; str is required"),  # type: ignore[arg-type]
    "results": (lambda: fedray.results(7), "results: name: found 7; str is required"),  # type: ignore[arg-type]
    "connect": (lambda: fedray.connect(7), "connect: address: found 7; str | None is required"),  # type: ignore[arg-type]
    "save": (lambda: simulate().save(3), "save: path: found 3; str | Path is required"),
    "save to a device": (lambda: simulate().save("/dev/null"), "save: /dev/null is not a regular file"),
    "table": (lambda: simulate().table(3), "table: unknown name '3'; valid: confusion"),
    "ragged": (lambda: on(x_train=[[1], [1, 2]]), "data: x_train cannot be made an array: ValueError: setting an…"),
    "ragged labels": (lambda: on(y_test=[[1], [1, 2]]), "data: y_test cannot be made an array: ValueError…"),
    "sparse": (lambda: on(x_train=csr_matrix(FLOATS)), "data: x_train is object (); uint8 (n, h, w[, c]) or…"),
    "sparse tensor": (
        lambda: on(x_train=torch.from_numpy(FLOATS).to_sparse()),
        "data: x_train cannot be made an array: TypeError: can't convert Sparse layout tensor to numpy…",
    ),
    "masked": (
        lambda: on(x_test=np.ma.masked_less(FLOATS[:6], 0)),
        "data: x_test is masked, and a mask would be lost; fill it, or leave the samples out",
    ),
    "doubles": (lambda: on(x_train=FLOATS.astype(float)), "data: x_train is float64 (24, 16); uint8 (n, h, w[, c])…"),
    "two types": (
        lambda: on(x_train=np.zeros((24, 4, 4), np.uint8), x_test=FLOATS[:6].reshape(6, 1, 4, 4)),
        "data arrays: x_train is uint8, x_test float32; one type is required, since only uint8 is scaled",
    ),
    "two types, the other way": (
        lambda: on(x_train=FLOATS.reshape(24, 1, 4, 4), x_test=np.zeros((6, 4, 4), np.uint8)),
        "data arrays: x_train is float32, x_test uint8; one type is required, since only uint8 is scaled",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, line = CALLS[name]
    with pytest.raises(UserError) as error:
        call()
    said = str(error.value)
    assert said == line if not line.endswith("…") else said.startswith(line[:-1]), said
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arrays",
    [
        {"x_train": torch.from_numpy(FLOATS).requires_grad_()},
        {"x_train": FLOATS[::-1].copy()[::-1]},
        {"y_train": torch.arange(24) % 3},
        {"y_train": (np.arange(24) % 3).astype(">i4")},
    ],
    ids=["requires grad", "negative strides", "tensor", "big endian"],
)
def test_arrays_that_only_look_strange_give_the_same_numbers(arrays: dict[str, Any]) -> None:
    assert torch.equal(on(**arrays).theta, on().theta)


def test_a_callback_gets_a_copy_of_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its changes to the row affect neither the history nor MLflow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    expected = simulate().history
    result = simulate(track="x", evaluated=lambda row: row.update(test_accuracy=-1.0))
    assert result.history == expected
    (cell,) = open_store()[0].get_metric_history(result.run_id, "test_accuracy")
    assert cell.value == expected[0]["test_accuracy"]


def test_a_full_disk_is_told_and_the_file_before_stays(tmp_path: Path) -> None:
    """RLIMIT_FSIZE simulates a full disk: no file can grow above 100 bytes."""
    file, limits = tmp_path / "m.safetensors", resource.getrlimit(resource.RLIMIT_FSIZE)
    result = simulate()
    before = result.save(file).read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(UserError, match=rf"^{file}: the model cannot be written: File too large$"):
            result.save(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
