"""Leaderboards: standings of a CSV, what is chosen, and the sweep of a method of the user's."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docs.generate.leaderboard import SETTINGS, compare_settings, describe_board, page
from fedray.algorithms.fedavg import FedAvg
from fedray.analysis.statistics import POWER, compute_power, find_effect
from fedray.common.errors import UserError
from fedray.papers.board import (
    COLUMNS,
    Board,
    Standing,
    find_ranking_metric,
    limit_cost,
    list_choices,
    list_standings,
    parse_csv,
    read_board,
    write_csv,
)
from fedray.papers.commands.board import describe_cpus, describe_gaps, draw_standings, join, make_sweep, parse_search
from fedray.papers.commands.board import rank as print_rank
from fedray.papers.commands.board import tuned as print_tuned
from tests.conftest import Call

SWEEP = """
name: leaderboard/tiny
base:
  data: {name: digits}
  partition: {name: dirichlet, alpha: 0.1}
  clients: {total: 10, per_round: 5}
  model: {name: mlp, hidden: [16]}
  training: {rounds: 4, local_epochs: 1, batch_size: 20}
cases:
  - {algorithm: fedavg, search: {training.lr: {loguniform: [0.01, 1]}}}
  - {algorithm: fedprox, search: {training.lr: {loguniform: [0.01, 1]}, algorithm.mu: {loguniform: [0.1, 2]}}}
  - {algorithm: fedsam, search: {training.lr: {loguniform: [0.01, 1]}, algorithm.rho: {loguniform: [0.01, 0.5]}}}
  - {algorithm: fedcm, search: {training.lr: {loguniform: [0.01, 1]}}}
samples: 4
searcher: sobol
tune: {seeds: [100], validation: {fraction: 0.2, from: clients}}
final: {seeds: [0, 1, 2]}
"""


def rows(method: str, accuracies: list[float], status: str = "finished", **options: float) -> list[dict[str, object]]:
    """Rows of the final stage, one per seed."""
    return [
        {
            "method": method, "stage": "final", "seed": seed, "cell": f"{method}{seed}", "status": status,
            "options": json.dumps(options), "accuracy": value, "gradients": 200,
            "megabytes_down": 30, "megabytes_up": 20, "curve": json.dumps([[100, 25, value - 10], [200, 50, value]]),
            "cpu": "Z80", "message": "the loss became NaN" if status == "diverged" else "",
        }
        for seed, value in enumerate(accuracies)
    ]  # fmt: skip


TUNING = {"method": "fedcm", "stage": "tune", "seed": 100, "status": "finished", "options": "{}"}


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board of four methods: two whole, one with a seed that diverged, one only tuned; one is left out."""
    (tmp_path / "leaderboard").mkdir()
    (tmp_path / "leaderboard" / "tiny.yaml").write_text(SWEEP)
    found = rows("fedavg", [70, 72, 74], **{"training.lr": 0.1})
    found += rows("fedprox", [73, 76, 76], **{"training.lr": 0.1, "algorithm.mu": 0.1})
    found += rows("fedsam", [80, 81]) + rows("fedsam", [0, 0, 0], "diverged")[2:]
    (tmp_path / "tiny.csv").write_text(write_csv([*found, TUNING]))
    (tmp_path / "left_out.yaml").write_text("tiny: {fedbn: needs everyone}\n")
    for user in ("papers.board", "sweep.file.shipped"):
        monkeypatch.setattr(f"fedray.{user}.get_sweeps_folder", lambda: tmp_path)
    monkeypatch.setattr("fedray.papers.board.get_boards_folder", lambda: tmp_path)
    return read_board("leaderboard/tiny")


def test_standings(board: Board) -> None:
    """FedProx is ahead of FedAvg by 3, 4 and 2: mean 3, deviation 1. Nothing is dropped."""
    found = list_standings(board)
    assert [(one.method, one.rank, one.reason) for one in found] == [
        ("fedprox", 1, ""),
        ("fedavg", 2, ""),
        ("fedsam", None, "1 of 3 seeds diverged: the loss became NaN"),
        ("fedcm", None, "not trained yet: 0 of 3 seeds"),
        ("fedbn", None, "needs everyone"),
    ]
    first, second = found[:2]
    assert (first.mean, second.mean, second.deviation) == (75, 72, 2)
    assert first.to_reference is not None
    assert first.to_best is None
    assert second.to_reference is None
    assert second.to_best is not None
    assert first.to_reference.gaps == (3, 4, 2)
    assert (first.to_reference.spread, second.to_best.mean, second.to_best.family) == (1, -3, 1)


def test_a_board_without_any_run_lists_all_methods(board: Board) -> None:
    empty = Board(board.name, board.sweep, parse_csv(",".join(COLUMNS) + "\n"))
    assert [(one.method, one.reason) for one in list_standings(empty)] == [
        (method, "not trained yet: 0 of 3 seeds") for method in ("fedavg", "fedprox", "fedsam", "fedcm")
    ]
    draw_standings(list_standings(empty), "empty")


def test_the_chosen_values_and_a_warning_at_the_edge(board: Board, capsys: pytest.CaptureFixture[str]) -> None:
    """0.1 is the middle of [0.01, 1] on a logarithmic scale and the end of [0.1, 2]."""
    assert list_choices(board)[1:3] == [
        ["fedprox", "`training.lr`", "0.1", "`[0.01, 1], log`", ""],
        ["fedprox", "`algorithm.mu`", "0.1", "`[0.1, 2], log`", "**at the edge**: nothing was tried beyond it"],
    ]
    print_tuned("fedprox", board.name)
    assert capsys.readouterr().out == "algorithm:\n  name: fedprox\n  mu: 0.1\ntraining:\n  lr: 0.1\n"
    with pytest.raises(UserError, match="fedcm: is not trained yet on leaderboard/tiny, so no options are chosen"):
        print_tuned("fedcm", board.name)


def test_the_section_of_a_board(board: Board) -> None:
    text = "\n".join(describe_board(board, list_standings(board)))
    assert "| 1 | fedprox | 75.00 ± 1.73 | +3.00 (+0.52 .. +5.48) |  | - | - | 200 | 30 | 20 |" in text
    assert "| - | fedbn | needs everyone |" in text
    assert "Trained on: Z80." in text


def test_the_section_of_a_board_without_any_run(board: Board, tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").unlink()
    empty = read_board(board.name)
    assert describe_board(empty, list_standings(empty))[-2:] == [
        "Not trained: 0 cells of tuning are here, and no final run.",
        "",
    ]


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board of four blocks, FedAvg and FedSAM whole; FedProx diverged in every draw of one block, FedCM in one draw.

    FedSAM takes twice FedAvg's gradients and is 5 points ahead; FedAvg is at 60 + 10 s in seed s.
    """
    text = SWEEP.replace("seeds: [100]", "blocks: true, seeds: [100, 101, 102, 103]").replace(
        "[0, 1, 2]", "[0, 1, 2, 3]"
    )
    (tmp_path / "leaderboard").mkdir()
    (tmp_path / "leaderboard" / "tiny.yaml").write_text(text)
    for user in ("papers.board", "sweep.file.shipped"):
        monkeypatch.setattr(f"fedray.{user}.get_sweeps_folder", lambda: tmp_path)
    monkeypatch.setattr("fedray.papers.board.get_boards_folder", lambda: tmp_path)
    found = list[dict[str, object]]()
    for method, factor, ahead in (("fedavg", 1, 0), ("fedsam", 2, 5)):
        for row in rows(method, [60, 70, 80, 90]):
            seed, value = int(str(row["seed"])), float(str(row["accuracy"])) + ahead
            options = json.dumps({"training.lr": 0.1 + 0.1 * seed})
            curve = [[50.0 * factor * t, 10.0 * t, value - 4 + t] for t in (1, 2, 3, 4)]
            found.append(row | {"accuracy": value, "options": options, "curve": json.dumps(curve)})
            tuning = {"method": method, "stage": "tune", "seed": 100 + seed, "status": "finished", "cell": "c"}
            found += [
                tuning | {"options": options, "score": 50 + (seed == 2)},
                tuning | {"options": json.dumps({"training.lr": 0.05}), "score": 40},
            ]
    found += [TUNING | {"method": "fedprox", "seed": seed, "status": "diverged"} for seed in (100, 100)]
    found += [TUNING | {"status": "diverged"}, TUNING]
    (tmp_path / "tiny.csv").write_text(write_csv(found))
    return read_board("leaderboard/tiny")


def test_a_board_of_blocks(blocks: Board, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block has its own rate, all of them the larger of two; `tuned` prints the one that scored best, seed 2's."""
    found = {one.method: one for one in list_standings(blocks)}
    assert {method: one.reason for method, one in found.items() if one.reason} == {
        "fedprox": "diverged in every draw of 1 of 4 blocks",
        "fedcm": "not trained yet: 0 of 4 seeds",
    }
    assert found["fedsam"].to_reference is not None
    assert found["fedsam"].to_reference.gaps == (5, 5, 5, 5)
    (line,) = [line for line in list_choices(blocks) if line[0] == "fedavg"]
    assert line[2:] == ["0.1 to 0.4, median 0.25", "`[0.01, 1], log`", "**the largest value drawn** in 4 of 4 blocks"]
    print_tuned("fedavg", blocks.name)
    assert "lr: 0.3" in capsys.readouterr().out.replace("0.30000000000000004", "0.3")


def test_ranks_at_the_cost_of_fedavg(blocks: Board) -> None:
    """FedAvg's run takes 200 gradients and 40 megabytes. FedSAM has taken 200 at its second test, 2 points lower."""
    cut = {one.method: one for one in list_standings(limit_cost(blocks, "gradients"))}
    assert cut["fedavg"].values == (60, 70, 80, 90)
    assert cut["fedsam"].values == (63, 73, 83, 93)
    assert {one.method: one.values for one in list_standings(limit_cost(blocks, "megabytes"))}["fedsam"] == (
        65, 75, 85, 95,
    )  # fmt: skip
    text = "\n".join(describe_board(blocks, list_standings(blocks)))
    assert "| fedsam | 1 | 1 | 78.00 ± 12.91 | 1 | 80.00 ± 12.91 |" in text


def test_the_section_on_both_settings() -> None:
    """`a` and `f` change places: 9 of 15 pairs are reversed, so τ = (6 - 9) / 15. `g` has a rank in one only."""
    ranked = {
        board: [Standing(name, (50.0,), place, "") for place, name in enumerate(order, 1)]
        for board, order in zip(SETTINGS, ("abcdef", "gfbcdea"), strict=True)
    }
    text = "\n".join(compare_settings(ranked))
    assert "6 methods have a rank under Dirichlet(0.1) and under Dirichlet(0.6)." in text
    assert "correlation τ of the two is -0.20. " in text
    assert "From Dirichlet(0.1) to Dirichlet(0.6), f (+5) gain the most places and a (-5) lose the most." in text
    assert compare_settings(ranked | {"leaderboard/global_mild": []}) == []


def test_the_page_is_current() -> None:
    written = (Path(__file__).parents[2] / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m docs.generate.leaderboard > docs/leaderboard.md"


ROOT = Path(__file__).parents[2]


def test_no_page_calls_a_method_of_a_board_better_or_worse() -> None:
    assert not re.search(r"\b(better|worse)\b", (ROOT / "docs/leaderboard.md").read_text(encoding="utf-8"))


def test_the_table_of_a_ranked_method_says_it_too(
    board: Board, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained runs stand in for its own: 5, 5 and 6 above FedAvg, told apart; 0, 1 and -1, not told apart."""
    monkeypatch.setattr("fedray.papers.commands.board.run_file", lambda sweep, command: 0)
    for accuracies, lines in (
        ([75, 77, 80], ["| 1 | **fedavgm** (yours) | 77.33 ± 2.52 | +5.33 (+3.90 .. +6.77) |  | - | - |"]),
        ([70, 73, 73], ["| 3 | **fedavgm** (yours) | 72.00 ± 1.73 | +0.00 (-2.48 .. +2.48) | not told apart |"]),
    ):
        own = rows("fedavgm", accuracies, **{"training.lr": 0.2})
        monkeypatch.setattr("fedray.papers.commands.board.list_rows", lambda sweep, own=own: own)
        print_rank("fedavgm", on=board.name, search=["training.lr={loguniform: [0.01, 1]}"])
        told = capsys.readouterr().out
        before, table = told.split(f"**{board.name} with fedavgm**\n\n")
        assert table.startswith("| rank | method |")
        gaps, work, draws = before.splitlines()
        assert draws == (
            "a block tries 4 values of training.lr, and the best one with another seed; at their defaults, since "
            "--search does not name them: beta"
        )
        # 4 draws with the seed 100, then the best with 0, 1 and 2
        assert re.fullmatch(
            rf"{board.name}-fedavgm: 7 cells, about \S+ (s|min) on this machine \(\d+ at a time\); .*", work
        )
        assert gaps.startswith(f"{board.name}: 2 of 4 methods are trained in all blocks, the others have no rank;")
        assert all(line in told for line in lines)
        assert not re.search(r"\b(better|worse)\b", told)


def test_a_row_on_an_empty_board_is_announced_to_stand_alone(board: Board) -> None:
    empty = replace(board, rows=parse_csv(",".join(COLUMNS) + "\n"))
    assert describe_gaps(empty).startswith(
        f"{board.name}: 0 of 4 methods are trained in all blocks, so your row will stand alone;"
    )
    assert (
        describe_gaps(
            replace(
                board, rows=parse_csv(write_csv([row for method in board.spaces for row in rows(method, [70, 72, 74])]))
            )
        )
        == ""
    )


def test_a_method_of_the_users(board: Board) -> None:
    """It has the board's budget, seeds and setting, and its line joins the others."""
    space = parse_search(["training.lr={loguniform: [0.01, 1]}"])
    sweep = make_sweep(board, "fedavgm", space)
    assert sweep.name == "leaderboard/tiny-fedavgm"
    assert (sweep.base, sweep.tune, sweep.final, sweep.samples) == (
        board.sweep.base, board.sweep.tune, board.sweep.final, board.sweep.samples,
    )  # fmt: skip
    own = parse_csv(write_csv(rows("fedavgm", [77, 78, 79], **{"training.lr": 0.2})))
    assert list_standings(join(board, sweep, "fedavgm", own))[0].method == "fedavgm"
    assert describe_cpus(board.rows, own) == ""
    assert "trained on Z80, your method on M68000" in describe_cpus(board.rows, own.assign(cpu="M68000"))


@pytest.mark.parametrize(
    ("method", "search", "message"),
    [
        ("fedavgm", [], "fedavgm has no range"),
        ("fedper", ["training.lr={uniform: [0, 1]}"], "fedper is personalised; leaderboard/tiny ranks global models"),
        ("ditto", ["training.lr={uniform: [0, 1]}"], "ditto is personalised; leaderboard/tiny ranks global models"),
        ("fedprox", [], "fedprox is on leaderboard/tiny"),
        (
            "fedavgm",
            ["training.rounds={choice: [9]}"],
            "--search: found training.rounds; options of the method",
        ),
        (
            "fedavgm",
            ["training.local_steps={choice: [9]}"],
            "--search: found training.local_steps; options of the method",
        ),
        ("fedavgm", ["beta={choice: [0.9]}"], "--search: found beta; options of the method"),
        (
            "fedavgm",
            ["partition.alpha={choice: [9]}"],
            "--search: found partition.alpha; options of the method",
        ),
        (
            "fedavgm",
            ["algorithm={choice: [fedprox]}"],
            "--search: found algorithm; options of the method",
        ),
        ("fedavgm", ["training.lr"], "--search: found 'training.lr'; KEY=RANGE is required"),
        ("fedavgm", ["training.lr={normal: [0, 1]}"], "--search.training.lr: unknown name 'normal'"),
        ("fedavgm", ["algorithm.beta={uniform: [0, 2]}"], r"--search.algorithm.beta: found \[0, 2\]; input should"),
    ],
)
def test_refusals(method: str, search: list[str], message: str, board: Board) -> None:
    with pytest.raises(UserError, match=message):
        make_sweep(board, method, parse_search(search))


class Bad(FedAvg):
    """Fails in its first step."""

    def direction(self, *args: object, **kwargs: object) -> None:  # type: ignore[override]
        raise RuntimeError("no such\nshape")


class Exits(FedAvg):
    """Ends the process in its first step."""

    def direction(self, *args: object, **kwargs: object) -> None:  # type: ignore[override]
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("name", "reason"), [("Bad", "RuntimeError: no such shape"), ("Exits", "SystemExit: 0")], ids=["raises", "exits"]
)
def test_a_method_that_fails_is_refused_in_one_line(name: str, reason: str, board: Board) -> None:
    space = parse_search(["training.lr={uniform: [0, 1]}"])
    with pytest.raises(UserError, match=rf":{name} fails on the model of leaderboard/tiny: {reason}$"):
        make_sweep(board, f"{__name__}:{name}", space)


def test_unknown_boards(board: Board) -> None:
    with pytest.raises(UserError, match="--on: unknown name 'leaderboard/tinny'; did you mean 'leaderboard/tiny'"):
        read_board("leaderboard/tinny")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("leaderboard/tinny", "name: unknown name 'leaderboard/tinny'; did you mean 'leaderboard/tiny'?"),
        (
            "leaderboard/tiny-my.Method",
            "name: 'leaderboard/tiny-my.Method' is a method ranked on leaderboard/tiny, not",
        ),
    ],
)
def test_show_refuses_what_is_no_board(name: str, told: str, board: Board, call: Call) -> None:
    """Its argument has no option's name, and one's own row is looked at with other commands."""
    code, out, err = call("board", "show", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"fedray: {told}")


def test_the_metric_that_ranks_is_the_one_that_selects_on_test_samples() -> None:
    assert find_ranking_metric("last10_validation_accuracy") == "last10_test_accuracy"
    assert find_ranking_metric("last10_validation_personal_accuracy") == "last10_personal_accuracy"
    assert find_ranking_metric("best_validation_client_accuracy") == "best_test_accuracy"


@pytest.mark.parametrize("seeds", [4, 10])
def test_the_effect_that_seeds_can_find_has_the_power(seeds: int) -> None:
    assert compute_power(find_effect(seeds, 0.01), np.array([seeds]), 0.01)[0] == pytest.approx(POWER, abs=1e-4)
