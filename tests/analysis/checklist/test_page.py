"""The page of a checklist: every question once, what the store knows, and what is for the author to say."""

import html
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedray.analysis.checklist.facts import _describe_sizes, describe_error_bars, describe_seeds
from fedray.analysis.checklist.page import collect_facts, find_stages, make_page
from fedray.analysis.checklist.questions import CHECKLISTS
from fedray.analysis.checklist.spending import list_spending
from fedray.analysis.data.collect import Collected, collect
from fedray.cli.main import app
from fedray.common.errors import UserError
from fedray.tracking.environment import collect_environment, find_environment, hash_environment
from fedray.tracking.tracker import Tracker
from tests.analysis.browser import opened
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write, write_run

METRIC = "last10_test_accuracy"
CHOSEN = {
    "stage": "s/tune",
    "select": "best_validation_accuracy",
    "held_out": {"fraction": 0.2, "from": "clients"},
    "train_on": "all",
    "seeds": [100, 101],
    "searcher": "sobol",
    "scheduler": "",
    "equal_budget": None,
    "values": {"algorithm.rho": 0.1},
    "score": 93.5,
    "draws": 8,
    "finished": 8,
    "rounds": 640,
    "gradients": 12800,
    "ranges": {"algorithm.rho": "loguniform [0.01, 0.5]"},
    "edges": [],
}


def pack(**offsets: list[int]) -> bytes:
    file = io.BytesIO()
    np.savez(file, samples=np.array([100, 20]), **{f"{k}_offsets": np.array(v) for k, v in offsets.items()})
    return file.getvalue()


SPLIT = pack(train=[0, 30, 40, 80], validation=[0, 10, 15, 20])


def tuned_sweep(store: Tracker) -> Collected:
    """A final stage of fedavg and fedsam with seeds 0 and 1, and a tune stage with seeds 100 and 101."""
    tune = [cell(FEDAVG, 0.5, seed) for seed in (100, 101)]
    final = [cell(method, 0.5, seed) for method in (FEDAVG, SMALL) for seed in (0, 1)]
    for one in final:
        one["config"] |= {"data": {"name": "digits"}, "model": {"name": "mine:Net"}, "clients": {"total": 3}}
    listed = [one | ({"tuned": CHOSEN} if k > 1 else {}) for k, one in enumerate(final)]
    claims = [{"name": "<b>best", "says": "FedSAM is best.", "method": "fedsam"}]
    parent = store.open_sweep("s", "", listed, claims)
    for k, one in enumerate(final):
        write_run(store, one, history(60 + k, 70 + k), parent=parent, files={"partition.npz": SPLIT})
    write(store, tune, [50, ("diverged", 9)], "s/tune")
    return collect("s")


def facts(sweep: Collected) -> dict[str, list[str]]:
    return collect_facts(sweep, find_stages(sweep), list_spending(sweep), [METRIC], "")


def test_what_the_store_knows(store: Tracker) -> None:
    found = facts(tuned_sweep(store))
    assert found["runs"] == [
        "tuning: 2 cells (a configuration with a seed): 1 finished, 1 diverged",
        "final: 4 cells (a configuration with a seed): 4 finished",
    ]
    assert found["seeds"][:2] == ["tuning: seeds 100, 101", "final: seeds 0, 1"]
    # the first seed's split: 30, 10 and 40 samples of three clients, 10, 5 and 5 held out
    assert found["data"][1] == (
        "final: digits dirichlet α=0.5; 3 clients; seed 0: 100 training and 20 test samples, "
        "80 trained on (10 to 40 per client), 20 held out for validation (5 to 10 per client)"
    )
    assert found["search"][0].startswith("tuned by s/tune: best best_validation_accuracy of sobol draws")
    assert "chosen for fedsam" in found["search"][1]
    assert "ρ=0.1 of loguniform [0.01, 0.5]; 8 draws, 640 rounds" in found["search"][1]
    # of the default 100 rounds the last ten count, and these runs have only two
    assert found["error bars"][:3] == [
        "test accuracy in %, mean of the tests in the last fifth of the rounds, at most 10",
        "mean ± sample standard deviation over 2 seeds; best bold, second best underlined",
        "the deviation is that of single runs (n - 1), not the standard error of the mean",
    ]
    assert found["error bars"][3] == "differences from fedavg, as fedray compare gives them:"
    assert found["model"] == [
        "mine:Net: the number of parameters is not known here (model: mine:Net is a plug-in; "
        "fedray imports no class that a store names)"
    ]
    assert found["commands"][0] == "made by: fedray run (4 runs)"
    assert found["assets"] == ["data: digits", "methods: fedavg, fedsam", "BibTeX of all of them: fedray cite s"]
    assert found["claims"][0] == "claim <b>best: FedSAM is best."
    cpu = collect_environment()["cpu"]
    assert found["hardware"][0].startswith(f"{cpu['count']} CPUs ({cpu.get('model', 'name not known')}), ")
    assert found["hardware"][0].endswith(" (6 runs)")
    assert found["hardware"][1] == "a run asks for 1 processes, each with ? threads, ? CPUs and ? GPUs (6 runs)"
    assert re.fullmatch(r"\S+ hours \(\S+ CPU-hours\) for the 4 runs shown; a run took \S+ to \S+ s", found["hours"][0])
    assert "for all 6 runs" in found["hours"][1]


def test_a_grid_says_so_and_one_seed_has_no_error_bar(store: Tracker) -> None:
    write(store, [cell(FEDAVG, 0.5, 0), cell(SMALL, 0.5, 0)], [60, 70])
    sweep = collect("sweep")
    assert describe_seeds({"sweep": sweep})[0] == "sweep: seed 0"
    assert describe_error_bars(sweep, METRIC, "") == [
        "test accuracy in %, mean of the tests in the last fifth of the rounds, at most 10",
        "one seed; best bold, second best underlined",
    ]
    found = facts(sweep)
    assert found["search"] == ["the store knows of no tuning: the values are those of the sweep's file, listed below"]
    assert found["data"] == ["sweep: dirichlet α=0.5; the sizes are not in the store"]
    assert found["claims"] == []


def test_a_partition_with_a_seed_of_its_own(store: Tracker) -> None:
    """Then the split does not follow from the run's seed."""
    one = cell(FEDAVG, 0.5, 3)
    one["config"]["partition"]["seed"] = 7
    write(store, [one], [60])
    last = describe_seeds({"sweep": collect("sweep")})[-1]
    assert last == "but with partition.seed (7) the split is the same for every seed"


@pytest.mark.parametrize("content", [b"", b"PK\5\6" + 18 * b"\0", b"no zip"])
def test_a_split_that_is_damaged(content: bytes) -> None:
    assert re.fullmatch(r"partition\.npz cannot be read \(\w+\)", _describe_sizes(content))


def test_a_split_that_would_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedray.analysis.checklist.facts.LARGEST", 100)
    assert _describe_sizes(SPLIT) == "partition.npz cannot be read (ValueError)"


@pytest.mark.parametrize("checklist", CHECKLISTS)
def test_every_question_is_there_with_its_number(checklist: str, store: Tracker) -> None:
    """NeurIPS has 16 questions, ACL A1, A2, B1 to B6, C1 to C4, D1 to D5 and E1. The facts are there, escaped."""
    text = make_page(tuned_sweep(store), checklist, [METRIC])
    numbers = {
        "neurips": [str(k) for k in range(1, 17)],
        "acl": ["A1", "A2", *(f"B{k}" for k in range(1, 7)), *(f"C{k}" for k in range(1, 5)),
                *(f"D{k}" for k in range(1, 6)), "E1"],
    }[checklist]  # fmt: skip
    yours = text[text.index('<table class="yours">') : text.index('<h2 id="hours">')]
    assert re.findall(r"<tr><td>(\w+)</td>", yours) == numbers
    known = text[text.index('<h2 id="known">') : text.index('<h2 id="yours">')]
    asked = {name for question in CHECKLISTS[checklist].questions for name in question.facts}
    for lines in (lines for name, lines in facts(collect("s")).items() if name in asked):
        assert html.escape(lines[-1], quote=False).replace("'", "&#39;") in known
    assert "<b>best" not in text
    assert CHECKLISTS[checklist].title in text


def test_all_facts_are_used_and_no_others() -> None:
    asked = {name for one in CHECKLISTS.values() for question in one.questions for name in question.facts}
    assert asked == {
        *("claims", "commands", "software", "assets", "data", "model", "search", "settings", "seeds"),
        *("error bars", "hardware", "hours", "runs"),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checklist", "icml"], "--checklist: unknown name 'icml'; did you mean 'acl'? valid: acl, neurips"),
        (["--checklist", "acl", "--published"], "--published: a checklist has no table; leave one of the two out"),
    ],
)
def test_wrong_options(arguments: list[str], message: str, store: Tracker) -> None:
    write(store, [cell(FEDAVG, 0.5, 0)], [60])
    result = CliRunner().invoke(app, ["report", "sweep", *arguments])
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == message


def test_an_environment_that_is_missing_is_one_line_and_no_page(
    store: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report and tables, which need only its hash, say that it is missing."""
    monkeypatch.chdir(tmp_path)
    write(store, [cell(FEDAVG, 0.5, 0)], [60])
    hash = hash_environment(collect_environment())
    run = find_environment(store.client, store.experiment, hash)
    assert run is not None
    store.client.delete_run(run.info.run_id)
    result = CliRunner().invoke(app, ["report", "sweep", "--checklist", "acl"])
    assert str(result.exception).startswith(f"environment {hash}: this store has no run that holds it")
    assert not list(tmp_path.glob("*.html"))
    assert CliRunner().invoke(app, ["report", "sweep"]).exit_code == 0
    assert f"environment {hash}: this store has no run that holds it" in (tmp_path / "sweep.html").read_text()


def test_in_a_browser(store: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default name, and a page that the browser accepts: nothing on its console, nothing from the network."""
    monkeypatch.chdir(tmp_path)
    tuned_sweep(store)
    assert CliRunner().invoke(app, ["report", "s", "--checklist", "neurips"]).stdout == "s-neurips.html\n"
    text, console = opened((tmp_path / "s-neurips.html").as_uri(), tmp_path / "profile")
    assert "NeurIPS 2026 paper checklist: s" in text
    assert console == []


def test_environments_that_differ_are_said_by_all_three(store: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two cells was run with another torch: the checklist, the report and the table warn, with both versions."""
    from fedray.analysis.report import make_page as make_report
    from fedray.analysis.tables.build import build

    other: dict[str, Any] = {**collect_environment(), "packages": {"torch": "0.1"}}
    cells = [cell(FEDAVG, 0.5, seed) for seed in (0, 1)]
    write(store, cells, [60])
    monkeypatch.setattr("fedray.tracking.tracker.collect_environment", lambda: other)
    write(Tracker(), cells, [None, 61])
    sweep = collect("sweep")
    torch = collect_environment()["packages"]["torch"]
    hashes = hash_environment(collect_environment()), hash_environment(other)
    said = f"the cells come from different environments: {hashes[0]} (1 cell), {hashes[1]} (1 cell); they differ in "
    (warning,) = [note for note in build(sweep).notes if note.startswith("WARNING")]
    assert warning.startswith(f"WARNING: {said}")
    assert facts(sweep)["software"][0].startswith(f"WARNING: sweep: {said}")
    page = make_report(sweep, [METRIC])
    assert f"WARNING: {said}" in page
    assert f'packages.torch</td><td class="mono">{torch}</td>' in page
