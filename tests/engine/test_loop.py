"""The round loop resumes, saves when due, keeps finished rounds if stopped, and reports a full disk in one line."""

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest

import fedray
from fedray.common.errors import UserError
from fedray.common.process import treat_sigterm_as_interrupt
from fedray.engine.disk.checkpoint import Checkpoints, Writer
from fedray.engine.disk.client_files import write_states
from fedray.engine.loop import make_rounds
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State
from tests import small

ROUNDS = 7
REPOSITORY = Path(__file__).parents[2]


def simulation() -> Simulation:
    return small.simulation(
        "scaffold", (6, 2), evaluation={"every": 2, "last": 1}, training={"rounds": ROUNDS, "local_epochs": 1}
    )


class Recorded(Checkpoints):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked: list[int] = []

    def save(self, state: State, writer: Writer = write_states) -> None:
        self.asked.append(state.round)
        super().save(state, writer)


@pytest.mark.parametrize(
    ("every", "seconds", "saved"), [(3, 1e9, [3, 6, 7]), (100, 1e9, [7]), (100, 0.0, [1, 2, 3, 4, 5, 6, 7])]
)
def test_saves_are_made_every_n_rounds_every_so_many_seconds_and_at_the_end(
    every: int, seconds: float, saved: list[int], tmp_path: Path
) -> None:
    store = Recorded(tmp_path)
    states = [state.round for state in make_rounds(simulation(), store, every, seconds)]
    assert states == list(range(ROUNDS + 1))
    assert store.asked == saved


def test_a_run_goes_on_from_its_checkpoint_and_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    whole = [state for state in make_rounds(simulation())][-1]
    for state in make_rounds(simulation(), Checkpoints(tmp_path), every=3):
        if state.round == 4:
            break  # as in a killed process: round 4 is lost if nothing closes the generator
    left = list(make_rounds(simulation(), Checkpoints(tmp_path), every=3))
    assert left[0].round in (3, 4)
    assert left[-1].digest() == whole.digest()
    assert left[-1].history == whole.history
    again = list(make_rounds(simulation(), Checkpoints(tmp_path), every=3))
    assert [state.round for state in again] == [ROUNDS], "a finished run makes no round"


def test_a_run_whose_only_checkpoint_is_damaged_begins_again(tmp_path: Path) -> None:
    """The states of its clients are zeros after round 3; that is found when one of them is drawn again."""
    whole = [state for state in make_rounds(simulation())][-1]
    states = make_rounds(simulation(), Checkpoints(tmp_path), every=100)
    assert [state.round for state in itertools.islice(states, 4)] == [0, 1, 2, 3]
    states.close()
    assert Checkpoints(tmp_path).list_rounds() == [3]
    for path in tmp_path.glob("client-*"):
        path.write_bytes(bytes(path.stat().st_size))
    made = list(itertools.islice(make_rounds(simulation(), Checkpoints(tmp_path), every=100), 20))
    assert 0 in [state.round for state in made[1:]]
    assert made[-1].digest() == whole.digest()
    assert made[-1].history == whole.history


def test_an_interrupt_that_was_swallowed_ends_the_run_after_its_round(tmp_path: Path) -> None:
    """SIGTERM in round 4, whose KeyboardInterrupt is lost, as in a callback of a library."""
    states = make_rounds(simulation(), Checkpoints(tmp_path), every=100)
    assert [next(states).round for _ in range(5)] == [0, 1, 2, 3, 4]
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with treat_sigterm_as_interrupt():
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                next(states)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Checkpoints(tmp_path).list_rounds() == [4]


def test_ctrl_c_in_a_test_of_the_model_leaves_no_round_without_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 4 is made and being tested: it is made again, and the history is that of an unbroken run."""
    running = simulation()
    evaluate = running.backend.evaluate

    def interrupted(*arguments: Any) -> Any:
        if running.state.round == 4:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(running.backend, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(make_rounds(running, Checkpoints(tmp_path), every=100))
    assert Checkpoints(tmp_path).list_rounds() == [3]
    last = list(make_rounds(simulation(), Checkpoints(tmp_path)))[-1]
    assert [row["round"] for row in last.history] == [2, 4, 6, 7]


def test_a_checkpoint_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    states = make_rounds(simulation(), Checkpoints(tmp_path), every=3)
    for state in states:
        if state.round == 3:
            monkeypatch.setattr("os.fsync", full)
            break
    with pytest.raises(UserError) as caught:
        list(states)
    assert str(caught.value) == (
        f"{tmp_path}: the checkpoint of round 6 cannot be written: No space left on device; that of round 3 stays; "
        "make room and run the same command again to resume"
    )
    assert Checkpoints(tmp_path).list_rounds() == [3]


def test_a_callback_can_stop_a_run_whose_result_is_kept(tmp_path: Path) -> None:
    """Rounds 1 to 6 are evaluated; stopped in 3, it goes on to the undisturbed end; other answers are refused."""
    config = simulation().problem.config.resolve() | {
        "training": {"rounds": 6, "local_steps": 1},
        "evaluation": {"every": 1},
    }
    seen: list[float] = []

    def third(row: dict[str, float]) -> object:
        seen.append(row["round"])
        return fedray.STOP if row["round"] == 3 else None

    stopped = fedray.simulate(config, evaluated=third, checkpoints=tmp_path)
    assert (stopped.state.round, len(stopped.history), seen) == (3, 3, [1, 2, 3])
    assert "3 of 6 rounds" in repr(stopped)
    for answer, found in (("stop", "'stop'"), (True, "True")):
        with pytest.raises(UserError, match=rf"^evaluated: returned {found}; None or fedray.STOP is required$"):
            fedray.simulate(config, evaluated=lambda row, answer=answer: answer)
    whole = fedray.simulate(config, checkpoints=tmp_path)
    assert whole.summary()["state_sha256"] == fedray.simulate(config).summary()["state_sha256"]


def test_the_last_rounds_are_all_evaluated() -> None:
    """7 rounds, tested every 3 and the last 2: 3 and 6 for one reason, 6 and 7 for the other."""
    for last, evaluated in ((2, [3, 6, 7]), (9, [1, 2, 3, 4, 5, 6, 7])):
        evaluation = {"every": 3, "last": last}
        run = small.sections(clients=(4, 1), training={"rounds": 7, "local_steps": 1}, evaluation=evaluation)
        assert [row["round"] for row in fedray.simulate(run).history] == evaluated


def test_checkpoints_of_another_configuration_are_refused(tmp_path: Path) -> None:
    config = simulation().problem.config
    first = fedray.simulate(config, checkpoints=tmp_path)
    again = fedray.simulate(config, checkpoints=tmp_path)
    assert again.state.digest() == first.state.digest()
    for change in ({"seed": 1}, {"algorithm": {"name": "fedavg"}}, {"training": {"rounds": ROUNDS + 1}}):
        with pytest.raises(
            UserError, match=r"^checkpoints: .* holds checkpoints of another configuration, seed or data set"
        ):
            fedray.simulate(config.resolve() | change, checkpoints=tmp_path)
    (tmp_path / f"checkpoint-{ROUNDS}.json").write_bytes(b"")  # damage is still passed over
    assert fedray.simulate(config, checkpoints=tmp_path).state.digest() == first.state.digest()
