"""Later generations of a search with numbers for `auto` GPUs and data sets unknown before, and the writing thread."""

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedray.cells.status import Status
from fedray.cluster.gpu_sharing import Packing
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine.process.device import Peak
from fedray.sweep.driver import run
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan import plan as planning
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.storage import CellLocks
from fedray.sweep.trials import tune
from fedray.sweep.trials.session import Session, Writer

GIB = 2**30
WIDTHS = [4, 5, 6, 7]
SAMPLES = 8
SHARED = {"gpus_per_actor": "auto"}


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Makes the session of a search in generations of two draws, without Ray: a node has 8 CPUs and a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("fedray.cluster.gpu_sharing.list_nodes", lambda: [{"CPU": 8.0, "GPU": 1.0}])

    def made(search: dict[str, Any], runtime: dict[str, Any], model: dict[str, Any]) -> Session:
        document = {
            "name": "search",
            "base": {
                "data": {"name": "digits", "validation": {}},
                "partition": "iid",
                "algorithm": "fedavg",
                "clients": {"total": 4, "per_round": 2},
                "training": {"rounds": 1},
                "model": model,
                "runtime": runtime,
            },
            "search": search,
            "samples": SAMPLES,
            "searcher": {"name": "optuna", "generation": 2},
        }
        nothing: Any = None
        return Session(planning.make_plan(Sweep.model_validate(document)), CellLocks(tmp_path / "locks"), nothing)

    return made


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of the models that were measured; a client takes a gigabyte per unit, of a GPU of 20."""
    seen: list[int] = []

    def peak(self: Packing, config: RunConfig, data: object) -> Peak:
        (width,) = config.model.list_options()["hidden"]
        seen.append(width)
        return Peak(width * GIB, 20 * GIB)

    monkeypatch.setattr(Packing, "_measure_alone", peak)
    return seen


def end(session: Session, cells: Sequence[Cell]) -> None:
    """All of them finish, the later the better."""
    for cell in cells:
        session.statuses[cell.hash] = Status.FINISHED
        session.values[cell.hash] = float(len(session.values))


def test_a_later_generation_gets_the_numbers_of_the_first(session: Callable[..., Session], measured: list[int]) -> None:
    """Only learning rates differ: 18 usable gigabytes hold four clients of 4 GB, which is measured once."""
    searching = session({"training.lr": {"loguniform": [0.01, 1]}}, SHARED, {"name": "mlp", "hidden": [4]})
    searching.data = dict.fromkeys(searching.plan.problems.data)  # type: ignore[arg-type]
    cells = searching.take()
    while len(searching.tried) < SAMPLES:
        assert [cell.run.runtime.gpus_per_actor for cell in cells] == [0.25, 0.25]
        end(searching, cells)
        cells = searching.learn_and_take()
    assert measured == [4]
    assert {cell.run.runtime.gpus_per_actor for cell in searching.plan.cells.values()} == {0.25}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[Cell]]:
    """The cells of each start of Tune; replaces Tune, which waits while a search learns."""
    starts: list[list[Cell]] = []

    def run_cells(session: Session, cells: Sequence[Cell], _: object) -> None:
        handed = tune._hand_over(session, cells)
        starts.append([])
        while cells:
            assert {cell.data for cell in cells} <= handed.keys()
            starts[-1] += cells
            end(session, cells)
            cells = session.learn_and_take()

    monkeypatch.setattr(tune, "DataRef", lambda data: data)
    monkeypatch.setattr(tune, "run_cells", run_cells)
    monkeypatch.setattr(run, "POLL", 0.0)
    return starts


def test_what_has_to_be_measured_waits_until_tune_has_ended(
    session: Callable[..., Session], measured: list[int], ran: list[list[Cell]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune waits while the search learns, and its trials hold the GPU; so nothing is measured then."""
    searching = session({"model.hidden": {"choice": [[width] for width in WIDTHS]}}, SHARED, {"name": "mlp"})
    learn = searching.learn_and_take

    def learn_and_take() -> list[Cell]:
        before = list(measured)
        cells = learn()
        assert measured == before
        return cells

    monkeypatch.setattr(searching, "learn_and_take", learn_and_take)
    run._run_until_done(searching, searching.take(), None)
    cells = list(itertools.chain(*ran))
    fractions = {4: 0.25, 5: 0.3333, 6: 0.3333, 7: 0.5}  # 18 // 4, 5, 6 and 7 clients of a GPU
    for cell in cells:
        assert cell.run.runtime.gpus_per_actor == fractions[cell.run.model.list_options()["hidden"][0]]
    assert [cell.hash for cell in cells] == list(searching.plan.cells), "each once, in the order of the draws"
    assert len(ran) > 1
    assert len(measured) == len(set(measured)) > 2, "each kind once"


def test_a_draw_that_can_never_be_placed_is_one_line(
    session: Callable[..., Session], measured: list[int], ran: list[list[Cell]]
) -> None:
    """Three actors of width 7: a GPU holds two. The first two draws have other widths."""
    widths = {"model.hidden": {"choice": [[width] for width in reversed(WIDTHS)]}}
    searching = session(widths, SHARED | {"actors": 3}, {"name": "mlp"})
    cells = searching.take()
    assert 7 not in measured
    with pytest.raises(UserError, match=r"^runtime\.actors: 3 actors of 1 CPU and 0.5 GPU each are asked for, 2 fit"):
        run._run_until_done(searching, cells, None)


def test_a_drawn_size_of_images_is_a_data_set_for_the_next_tune(
    session: Callable[..., Session], ran: list[list[Cell]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size is another data set. Trials get those that are known when Tune begins, and each is put once."""
    put: list[int] = []
    monkeypatch.setattr(tune, "DataRef", lambda data: put.append(data.x_train.shape[-1]))
    sizes = {"model.resize": {"choice": [4, 8, 12, 16]}}
    searching = session(sizes, {}, {"name": "sl_vit", "dim": 4, "depth": 1, "heads": 1})
    run._run_until_done(searching, searching.take(), None)
    assert [cell.hash for cell in itertools.chain(*ran)] == list(searching.plan.cells)
    assert len(ran) > 1
    assert len(put) == len(set(put)) == len(searching.plan.problems.data) > 2


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
