"""Result tables from a real MLflow store into which the runs of a sweep were written by hand."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedray.analysis.comparison import compare
from fedray.analysis.data.collect import SweepTable, collect
from fedray.analysis.data.metrics import is_ranked, make_title, read_values
from fedray.analysis.figures import main as figures
from fedray.analysis.report import make_page
from fedray.analysis.tables.build import build, main
from fedray.analysis.tables.formats import to_csv, to_latex, to_markdown
from fedray.api.results import results
from fedray.cells.cell import Cell
from fedray.cells.sheet import Sheet
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError
from fedray.sweep.storage import lock_sweep
from fedray.tracking.environment import make_environment_tags
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, Outcome, cell, history, sheet, write, write_run
from tests.conftest import Call


def test_one_table_of_two_sweeps(store: Tracker, call: Call) -> None:
    """The second sweep shares FedAvg's cell, which counts once, and adds a method."""
    first, second = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)], [cell(a, 0.5, 0) for a in (FEDAVG, LARGE)]
    write(store, first, [80, 90])
    write(store, second, [None, 85], name="second")
    out = call("tables", "sweep", "second", "--format", "csv").done
    values = {row["row"]: float(row["mean"]) for row in csv.DictReader(io.StringIO(out))}
    assert values == {"fedavg": 80, "fedsam ρ=0.1": 90, "fedsam ρ=0.5": 85}
    write(store, [one | {"names": {"fedavg": "FedAvg", "dirichlet": "Dir"}} for one in second], [80, 85], name="named")
    for names in (("sweep", "named"), ("named", "sweep")):  # in either order
        assert call("tables", *names, "--format", "csv").done.count("FedAvg,Dir α=0.5") == 1
    assert r"\caption{Test accuracy in \%, " in call("tables", "sweep", "second", "--format", "latex").out
    write(store, [cell(LARGE, 0.1, 0)], [None], name="late/0")
    for running in ("sweep", "late/0"):
        with lock_sweep(running):
            said = call("tables", "sweep", "late").out
            assert ("1 of 3 cells missing; a call of the sweep is running" in said) is (running == "late/0")
    names = "late/0, named, second, sweep"
    message = f"fedray: sweep: found x.yaml, a file; the `name` in it is required; here are {names}\n"
    assert call("tables", "x.yaml") == (2, "", message)
    for command, *more in ("rm", "--yes"), ("verify",), ("export",), ("ui",):
        assert call(command, "x.yaml", *more) == (2, "", message), command
    message = "fedray: sweep: 'fedtoga/table1' has no run in this store; `fedray sweep fedtoga/table1` runs it\n"
    assert call("tables", "fedtoga/table1") == (2, "", message)


def read_entries(text: str) -> dict[str, list[str]]:
    """Row of a Markdown table -> its first two entries."""
    lines = [line.split("|") for line in text.splitlines() if line.startswith("| fed")]
    return {row.strip(): [entry.strip() for entry in entries[:2]] for _, row, *entries in lines}


def test_mean_std_ranks_and_every_kind_of_hole(store: Tracker) -> None:
    """Two seeds each. fedavg: the mean of the last two of ten rounds is 80, one round 84 -> 82 ± 2.83 (|84-80|/sqrt 2).
    fedsam ρ=0.1: 90 and 92 -> 91 ± 1.41, the best. fedsam ρ=0.5 would be 99, but one seed diverged: its entry says so
    and is not ranked. At α = 0.1: fedavg has one seed missing, ρ=0.1 one stopped early, ρ=0.5 one still running."""
    cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1)]
    first: list[Outcome] = [history(*[0] * 8, 79, 81), 84, 90, 92, 99, ("diverged", 99)]
    values: list[Outcome] = [*first, 50, None, 60, ("stopped", 95), ("failed", 10), ("running", 20)]
    write(store, cells, values)
    table = build(collect("sweep"))
    assert table.rows == ["fedavg", "fedsam ρ=0.1", "fedsam ρ=0.5"]
    assert table.columns == ["dirichlet α=0.5", "dirichlet α=0.1"]
    assert table.notes.count("entries that lack seeds, as they say, are not ranked") == 1
    assert table.notes[1] in to_latex(table), "in the caption, too"
    text = to_markdown(table)
    assert read_entries(text) == {
        "fedavg": ["<u>82.00 ± 2.83</u>", "50.00 (1 missing)"],
        "fedsam ρ=0.1": ["**91.00 ± 1.41**", "60.00 (1 stopped)"],
        "fedsam ρ=0.5": ["99.00 (1 diverged)", "- (1 failed, 1 running)"],
    }
    assert "mean of the tests in the last fifth of the rounds, at most 10" in text, "without a number of rounds"
    assert "- diverged: " in text
    assert "why" in text
    assert r"\textbf{91.00 $\pm$ 1.41}" in to_latex(table)
    assert r"\underline{82.00 $\pm$ 2.83}" in to_latex(table)
    assert r"fedsam & 0.1 & \textbf{91.00 $\pm$ 1.41} & " in to_latex(table)
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == 6
    assert rows[0] | {"row": "fedavg", "mean": "82", "std": "2.82843", "seeds": "2", "others": ""} == rows[0]


def test_means_with_equal_digits_share_a_rank(store: Tracker) -> None:
    """90.001 and 90.004 are both printed as 90.00, and the second best is the next one. Losses have three figures of
    their median, 0.0314, although one is 5: 0.0312 and 0.0314 are no longer alike."""
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL, LARGE)], [90.001, 90.004, 80])
    text = to_markdown(build(collect("sweep")))
    assert text.count("**90.00**") == 2
    assert "<u>80.00</u>" in text
    losses = [[row | {"test_loss": loss} for row in history(80)] for loss in (0.0312, 0.0314, 5)]
    write(store, [cell(a, 0.1, 0) for a in (FEDAVG, SMALL, LARGE)], losses, name="losses")
    text = to_markdown(build(collect("losses"), "test_loss"))
    assert [part in text for part in ("**0.0312**", "<u>0.0314</u>", " 5.0000 ")] == [True] * 3


def test_a_repeated_cell_counts_once_and_superseded_ones_not_at_all(store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0)
    write(store, [one], [70])
    store.supersede([one["hash"]])
    write_run(store, one, history(75), parent=store.open_sweep(sheet("sweep", [one])), again=False)
    entry = build(collect("sweep")).entries["fedavg", "dirichlet α=0.5"]
    assert (entry.mean, entry.seeds) == (75, 1)


def test_a_row_per_seed(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell in the sweep's order, with any outcome and all digits; two metrics are two columns."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, [history(*[0] * 8, 79, 81), history(100 / 3), ("diverged", 9)])
    main(["sweep"], "seeds", "last10_test_accuracy,test_loss", out=tmp_path / "seeds.csv")
    assert capsys.readouterr().out == f"{tmp_path / 'seeds.csv'}\n"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "seeds.csv").read_text(encoding="utf-8"))))
    statuses = ("finished", "finished", "diverged", "missing")
    seeds = [(method, seed) for method in ("fedavg", "fedsam") for seed in ("0", "1")]
    assert [((row["row"], row["seed"]), row["status"]) for row in rows] == [*zip(seeds, statuses, strict=True)]
    assert {row["column"] for row in rows} == {"dirichlet α=0.5"}
    assert float(rows[0]["last10_test_accuracy"]) == 80
    assert float(rows[1]["last10_test_accuracy"]) == 100 / 3
    assert float(rows[0]["test_loss"]) == pytest.approx(1 - 0.81)
    assert [rows[k]["last10_test_accuracy"] for k in (2, 3)] == ["", ""]
    assert rows[0]["run_id"] == collect("sweep").cells["run_id"][0]


def test_methods_in_columns_are_ranked_within_rows(store: Tracker) -> None:
    """fedsam is the better method in both settings; a setting is never the best. One setting has a second seed."""
    cells = [cell(a, alpha, seed) for alpha, seed in ((0.5, 0), (0.1, 0), (0.1, 1)) for a in (FEDAVG, SMALL)]
    write(store, cells, [80, 90, 50, 60, 52, 62])
    across = build(collect("sweep"), rows="partition", columns="algorithm")
    best = {key for key, rank in across.ranks.items() if rank == 1}
    assert best == {(f"dirichlet α={alpha}", "fedsam") for alpha in (0.5, 0.1)}
    assert across.notes[0] == "mean ± sample standard deviation over 1 to 2 seeds; best bold, second best underlined"


def test_a_file_with_a_label(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The label follows the caption, which counts the tables; the file is what is printed without one."""
    write(store, [cell(FEDAVG, 0.5, 0)], [70])
    main(["sweep"], "latex", label="tab:main-results", out=tmp_path / "deep" / "table.tex")
    assert capsys.readouterr().out == f"{tmp_path / 'deep' / 'table.tex'}\n"
    text = (tmp_path / "deep" / "table.tex").read_text(encoding="utf-8")
    commands = re.findall(r"^\\(begin\{\w+\}|caption|label\{.*\}|end\{\w+\})", text, re.MULTILINE)
    tabular = ("begin{tabular}", "end{tabular}")
    assert commands == ["begin{table}", "caption", "label{tab:main-results}", *tabular, "end{table}"]
    assert "70.00 \\\\" in text
    (caption,) = re.findall(r"^\\caption\{(.*)\}$", text, re.MULTILINE)
    assert caption.startswith(r"Test accuracy in \%, "), "without the sweep's name, which is a file's"
    assert caption.endswith("; one seed"), "without a legend"
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)], [70, 80], name="two")
    main(["two"], "latex", out=tmp_path / "two.tex")
    said = "LaTeX: the table needs \\usepackage{booktabs}"
    ranked = f"{said}; its caption leaves out: best bold, second best underlined\n"
    assert capsys.readouterr() == (f"{tmp_path / 'two.tex'}\n", ranked)
    main(["two"], "latex", caption="Best in bold.", out=tmp_path / "captioned.tex")
    assert capsys.readouterr().err == f"{said}\n", "the user's own caption may say it"
    main(["sweep"], out=tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text(encoding="utf-8").startswith("row,column,mean,")
    capsys.readouterr()
    main(["sweep"], "latex", label="tab:main-results")
    assert capsys.readouterr().out == text
    main(["sweep"], "latex")
    assert capsys.readouterr().out == text.replace("\\label{tab:main-results}\n", "")
    main(["sweep"], "latex", caption="Accuracy for\n$\\rho = 0.1$, in~\\%, of 5 %")
    assert "\\caption{Accuracy for $\\rho = 0.1$, in~\\%, of 5 \\%}\n" in capsys.readouterr().out


def test_rounds_to_a_target_and_the_speed_up(store: Tracker) -> None:
    """fedavg reaches 80 in rounds 3 and 5 (80 itself counts; falling below it afterwards does not matter): 4 ± 1.41.
    ρ=0.1 in rounds 1 and 3: 2, so twice as fast. ρ=0.5: one seed in round 2, one never, so it has no rank or speed-up.
    At α = 0.1 fedavg never does: `-`. A run that was stopped counts if it reached the target before: both of fedavg's
    and one of ρ=0.1 at α = 0.1, the other one not."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1)] + [cell(FEDAVG, 0.1, 0)]
    cells += [cell(SMALL, 0.1, seed) for seed in (0, 1)]
    curves = [(10, 79.9, 80, 70), (10, 20, 30, 40, 90), (80,), (1, 2, 85), (1, 80), (1, 79, 2), (1, 2), (1, 81), (1, 2)]
    stopped = {0, 1, 7, 8}
    write(store, cells, [("stopped", history(*c)) if i in stopped else history(*c) for i, c in enumerate(curves)])
    table = build(collect("sweep"), "rounds_to:80", reference="fedavg")
    assert read_entries(to_markdown(table)) == {
        "fedavg": ["<u>4.0 ± 1.4</u>", "- (1 seed) (1 never)"],
        "fedsam ρ=0.1": ["**2.0 ± 1.4** (2.00×)", "2.0 (1 stopped)"],
        "fedsam ρ=0.5": ["2.0 (1 never)", ""],
    }
    assert "at least 80 %" in table.title
    assert table.captioned == [
        "(n seeds): other seeds than most have, and so neither bold (best) nor underlined (second best)",
        "entries that lack seeds, as they say, are not ranked",
        "never: runs that do not reach the target, in no mean; their entries are not ranked",
        "(×): fedavg's mean rounds divided by the method's, of the seeds that both have; none where one of the two "
        "lacks a seed or never arrives",
    ]
    assert table.captioned == table.notes[1:5]
    assert table.notes[0].startswith("mean ± sample standard deviation over 2 seeds unless said; best bold")
    assert r"\textbf{2.0 $\pm$ 1.4} (2.00$\times$)" in to_latex(table)
    assert [row["speedup"] for row in csv.DictReader(io.StringIO(to_csv(table)))] == ["1", "2", "", "", ""]
    assert [note for note in table.notes if note.startswith("stopped")] == ["stopped: fedsam-0.1-0.1-1: why"]
    means = build(collect("sweep"), "speedup:80/fedavg").entries
    assert means["fedsam ρ=0.1", "dirichlet α=0.5"].mean == pytest.approx((3 / 1 + 5 / 3) / 2)
    assert means["fedsam ρ=0.5", "dirichlet α=0.5"].mean == 3 / 2, "the seed that never arrives is in no mean"
    assert {one.n for one in compare(collect("sweep"), "fedavg", "rounds_to:80").differences} == {2, 1, 0}


def test_differences_to_a_reference(store: Tracker) -> None:
    """82 and 90 compared with 80: +2 and +10; 0 for the reference itself; no difference if a seed is missing."""
    write(store, [cell(a, alpha, 0) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL, LARGE)], (80, 82, 90, 70, 65))
    table = build(collect("sweep"), reference="fedavg")
    assert [entry.change for entry in table.entries.values()] == [0, 2, 10, 0, -5, None]
    assert "90.00** (+10.00)" in to_markdown(table)
    assert "in parentheses: difference to fedavg" in to_markdown(table)
    assert "; in parentheses: difference to fedavg}" in to_latex(table), "of the caption"
    alone = build(collect("sweep"), reference="fedavg", metric="rounds_to:99")
    assert "in parentheses" not in to_markdown(alone), "nobody gets there"


def test_seeds_that_others_lack_make_no_rank_and_no_difference(store: Tracker, call: Call) -> None:
    """Seeds 0, 1, 2 of fedavg: 60, 70, 80, of ρ=0.1: one higher each. ρ=0.5 in another sweep has seeds 0 and 1, 64 and
    75, so 4.5 above fedavg, as `compare` says, and not 69.5 - 70; its mean is not ranked. 0.1, 0.2, 0.3 and the same
    backwards have other means in their last bits, and no difference of -0."""
    write(store, [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(3)], [60, 70, 80, 61, 71, 81])
    write(store, [cell(LARGE, 0.5, seed) for seed in range(2)], [64, 75], name="other")
    table = build(collect("sweep", "other"), reference="fedavg")
    assert [round(one.change or 0, 9) for one in table.entries.values()] == [0, 1, 4.5]
    assert {row: rank for (row, _), rank in table.ranks.items()} == {"fedsam ρ=0.1": 1, "fedavg": 2}
    assert re.search(r"\| fedsam ρ=0.5 \(2 seeds\) +\| 69.50 ± 7.78 \(\+4.50\) +\|", to_markdown(table))
    assert r" & 0.5 (2 seeds) & 69.50 $\pm$ 7.78 (+4.50) \\" in to_latex(table)
    across = build(collect("sweep", "other"), rows="partition", columns="algorithm")
    assert re.search(r"fedsam ρ=0.5 \(2 seeds\) \|\n(?s:.*)\| 69.50 ± 7.78 +\|\n", to_markdown(across)), "in the header"
    assert r" &  & 0.1 & 0.5 (2 seeds) \\" in to_latex(across)
    assert table.captioned[1] == "in parentheses: difference to fedavg, of the seeds that both have"
    for k, (method, number) in enumerate(((FEDAVG, 3), (SMALL, 3), (LARGE, 2))):
        cells = [cell(method, alpha, seed) for alpha in (1, 2) for seed in range(number)]
        write(store, cells, [80 if k < 2 else 60] * len(cells), name=f"average{k}")
    mean = build(collect("average0", "average1", "average2"), "rounds_to:79", average_over="partition")
    assert re.search(r"\| fedsam ρ=0.5 \(2 seeds\) +\| - \(2 never\) +\|", to_markdown(mean)), "not its four runs"
    assert mean.captioned[0] == "averaged over dirichlet α=1 and dirichlet α=2, seed by seed"
    assert "<th>fedsam ρ=0.5 (2 seeds)</th>" in make_page(collect("sweep", "other"), ["last10_test_accuracy"])
    assert json.loads(call("compare", "sweep", "other", "--json").out)["differences"][1]["mean"] == 4.5
    equal = [cell(a, 0.1, seed) for a in (FEDAVG, SMALL) for seed in range(3)]
    write(store, equal, [0.1, 0.2, 0.3, 0.3, 0.2, 0.1], name="equal")
    assert to_csv(build(collect("equal"), reference="fedavg")).count(",0\n") == 2
    for out in (call("tables", "equal", "--reference", "fedavg").out, call("compare", "equal").out):
        assert "+0.0" in out
        assert "-0.00" not in out


def test_settings_that_differ_are_never_averaged(store: Tracker) -> None:
    """Two numbers of clients: columns of their own unless --cols says otherwise, and then a note says so."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 0)]
    for one, total in zip(cells, (100, 200), strict=True):
        one["hash"] += str(total)
        one["config"]["clients"] = {"total": total, "per_round": total // 10}
    write(store, cells, (80, 90))
    table = build(collect("sweep"))
    assert table.columns == ["dirichlet α=0.5 total=100", "dirichlet α=0.5 total=200"]
    assert [entry.mean for entry in table.entries.values()] == [80, 90]
    mixed = build(collect("sweep"), columns="partition")
    assert mixed.notes[0] == "mean ± sample standard deviation over 2 runs; best bold, second best underlined"
    said = "runs of an entry differ by more than the seed; --cols"
    assert mixed.notes[1].startswith(said)
    write(store, [of_rounds(cell(FEDAVG, 0.5, k), 4 + k // 2) for k in range(4)], (10, 20, 60, 80), name="apart")
    apart = build(collect("apart"))
    assert [entry.mean for entry in apart.entries.values()] == [15, 70], "4 and 5 rounds, no seed of one in the other"
    assert build(collect("apart"), columns="partition").notes[1].startswith(said)
    for name, identity, said_of in (
        ("threads", {"runtime": {"threads": 2}}, ["threads=1", "threads=2"]),
        ("imported", {"data": {"digest": "a" * 64}}, ["digest=-", f"digest={'a' * 12}"]),
    ):
        pairs = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in (0, 1)]
        others = [one | {"hash": f"{one['hash']}-{name}", "identity": identity} for one in pairs]
        write(store, [*pairs, *others], (10, 20, 11, 22, 60, 80, 63, 84), name=name)
        found = build(collect(name))
        assert found.columns == [f"dirichlet α=0.5 {one}" for one in said_of]
        assert [entry.mean for entry in found.entries.values()] == [15, 16.5, 70, 73.5]
        assert [one.gaps for one in compare(collect(name)).differences] == [(1, 2), (3, 4)]
        assert build(collect(name), columns=said_of[0].partition("=")[0]).columns == said_of
    own = [cell(FEDAVG, 0.5, seed) for seed in (0, 1)]
    for one in own:
        one["config"]["data"] = {"name": "npz", "path": f"{one['config']['seed']}.npz"}
    write(store, own, (10, 20), name="own")
    (entry,) = (table := build(collect("own"))).entries.values()
    assert (entry.mean, table.notes[1].startswith(said)) == (15, True), "a file for each seed"


def of_clients(per_round: float) -> list[dict[str, Any]]:
    found = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in (0, 1)]
    config = {"clients": {"total": 6, "per_round": per_round}}
    return [one | {"hash": f"{one['hash']}-{per_round}", "config": one["config"] | config} for one in found]


def test_one_client_is_not_every_client(store: Tracker, tmp_path: Path, call: Call) -> None:
    """Of a sweep, and of two; 1.0 and a number of clients are no numbers of one axis. Neither are those of a class of
    the user's own, which distinguishes 1 from 1.0."""
    write(store, of_clients(1) + of_clients(1.0), (10, 20, 11, 22, 60, 80, 63, 84))
    write(store, of_clients(1), (), name="one")
    write(store, of_clients(1.0), (), name="every")
    for names in (["sweep"], ["one", "every"]):
        columns = [f"dirichlet α=0.5 per_round={one}" for one in ("1", "1.0")]
        table = build(collect(*names))
        assert (table.columns, [entry.mean for entry in table.entries.values()]) == (columns, [15, 16.5, 70, 73.5])
        assert build(collect(*names), columns="per_round").columns == ["per_round=1", "per_round=1.0"]
        assert [one.gaps for one in compare(collect(*names)).differences] == [(1, 2), (3, 4)]
    assert results("sweep").cells["clients.per_round"].tolist() == ["1"] * 4 + ["1.0"] * 4
    assert "over 2 seeds" in call("figures", "sweep", "--kind", "curves", "--out", str(tmp_path)).out
    asked = "figures", "sweep", "--kind", "sensitivity", "--x", "clients.per_round", "--out", str(tmp_path)
    assert "are not numbers: 1, 1.0" in call(*asked).err
    write(store, of_clients(5) + of_clients(1.0), (), name="mixed")
    assert [one.rpartition("=")[2] for one in build(collect("mixed")).columns] == ["5", "1.0"]
    shares = [*of_clients(0.5), *of_clients(1.0)]
    write(store, shares, (1, 2, 3, 4, 5, 6, 7, 8), name="shares")
    assert [one.rpartition("=")[2] for one in build(collect("shares")).columns] == ["0.5", "1.0"]
    assert collect("shares").cells["clients.per_round"].tolist() == [0.5] * 4 + [1.0] * 4
    write(store, [cell({"name": "own:Own", "k": k}, 0.5, 0) for k in (1, 1.0)], (10, 20), name="own")
    assert build(collect("own")).rows == ["own:Own k=1", "own:Own k=1.0"]


def test_an_option_with_one_value_is_named_if_asked_for(store: Tracker) -> None:
    """`algorithm,algorithm.rho`: beside the method, once, and not for a method without it."""
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)], [70, 71])
    assert build(collect("sweep")).rows == ["fedavg", "fedsam"]
    for keys in ("algorithm,algorithm.rho", "algorithm,rho", "algorithm,ρ"):
        assert build(collect("sweep"), rows=keys).rows == ["fedavg", "fedsam ρ=0.1"]
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL, LARGE)], [70, 71, 72], name="more")
    assert build(collect("more"), rows="algorithm,algorithm.rho").rows == ["fedavg", "fedsam ρ=0.1", "fedsam ρ=0.5"]
    write(store, [cell({"name": "fedtoga", "rho": 0.2}, 0.5, 0)], [73], name="toga")
    both = build(collect("more", "toga"), reference="fedtoga")
    assert both.rows[-1] == both.reference == "fedtoga ρ=0.2", "beside methods whose ρ varies; alone it needs no ρ"
    with pytest.raises(UserError, match=r"unknown name 'algorithm.rhoo'; did you mean 'algorithm.rho'"):
        build(collect("more"), rows="algorithm,algorithm.rhoo")
    by_value = build(collect("more"), rows="rho", columns="seed,algorithm")
    assert by_value.rows == ["ρ=-", "ρ=0.1", "ρ=0.5"], "a key alone is named, too"
    said = r"--reference: unknown name 'fedsam'; did you mean 'fedsam ρ=0.1' or 'fedsam ρ="
    with pytest.raises(UserError, match=said):
        build(collect("more"), reference="fedsam")


def test_two_metrics_side_by_side(store: Tracker) -> None:
    """Each setting has a column per metric, each ranked by itself; the deviation over clients is best when small. A
    best round is a number without a better one."""
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    rows = [
        [{"round": 1, "test_accuracy": 1, "test_loss": 1, "train_loss": 1, "personal_accuracy": a, "personal_std": d}]
        for a, d in ((90, 3), (80, 2))
    ]
    write(store, cells, rows)
    table = build(collect("sweep"), "personal_accuracy,personal_std")
    assert table.columns == ["dirichlet α=0.5: personal_accuracy", "dirichlet α=0.5: personal_std"]
    assert [entry.mean for entry in table.entries.values()] == [90, 80, 3, 2]
    assert [table.ranks[row, column] for column in table.columns for row in table.rows] == [1, 2, 2, 1]
    assert "personal accuracy in % of the last round; deviation of the personal accuracy over clients" in table.title
    assert not is_ranked("best_round", collect("sweep").cells)
    for metric, hint in (
        ("validation_loss", "$"),
        ("best_test_loss", "; only accuracies, macro F1 and AUC have a best_$"),
        ("best_test_auc", "; evaluation.auc makes runs log it$"),
        ("last10_unseen_accuracy", "; clients.unseen makes runs log it"),
    ):
        with pytest.raises(UserError, match=f"--metric: found '{metric}', which no finished run has logged{hint}"):
            read_values(collect("sweep"), metric)


@pytest.mark.parametrize("value", [0.1, 70.3])
def test_equal_seeds_have_no_deviation(value: float, store: Tracker) -> None:
    """pandas' deviation of three equal numbers is 1.7e-17 or 1.7e-14."""
    write(store, [cell(FEDAVG, 0.5, seed) for seed in range(3)], [value] * 3)
    assert to_csv(build(collect("sweep"))).splitlines()[1].split(",")[2:5] == [f"{value}", "0", "3"]


def test_averages_over_settings_seed_by_seed(store: Tracker) -> None:
    """Seed 0: (60 + 80) / 2 = 70; seed 1: (64 + 82) / 2 = 73: 71.5 ± 2.12, not the 9.5 of four numbers. Seed 2 lacks a
    setting, so it takes no part; fedsam is planned for one of the two settings only."""
    cells = [cell(SMALL, 0.5, 0)] + [cell(FEDAVG, alpha, seed) for seed in (0, 1, 2) for alpha in (0.5, 0.1)]
    write(store, cells, (99, 60, 80, 64, 82, 99))
    table = build(collect("sweep"), average_over="partition")
    (column,) = table.columns
    entry = table.entries["fedavg", column]
    assert (entry.mean, entry.seeds, entry.others) == (71.5, 2, {"missing": 1})
    assert entry.std == pytest.approx(4.5**0.5)
    assert (table.entries["fedsam", column].mean, table.entries["fedsam", column].others) == (None, {"missing": 1})
    with pytest.raises(UserError, match="--average-over: unknown name 'partitoin'; did you mean 'partition'"):
        build(collect("sweep"), average_over="partitoin")


def test_the_best_of_the_other_rows(store: Tracker) -> None:
    """ρ=0.1 is best at α = 0.5, ρ=0.5 at α = 0.1; fedavg, higher than both, is no baseline. At α = 10 a seed of ρ=0.1
    diverged, so the best is ρ=0.5, though the other seed is better. The row itself is not ranked."""
    cells = [cell(a, alpha, 0) for alpha in (0.5, 0.1, 10) for a in (FEDAVG, SMALL, LARGE)] + [cell(SMALL, 10, 1)]
    write(store, cells, [99, 80, 70, 99, 60, 65, 99, ("diverged", 98), 50, 98])
    table = build(collect("sweep"), best_except="fedavg", reference="best baseline")
    assert [table.entries["best baseline", column].mean for column in table.columns] == [80, 65, 50]
    assert [table.entries["fedavg", column].change for column in table.columns] == [19, 34, 49]
    assert ("best baseline", table.columns[0]) not in table.ranks
    chosen = "fedsam ρ=0.1 (dirichlet α=0.5), fedsam ρ=0.5 (dirichlet α=0.1, dirichlet α=10)"
    said = "best baseline: of all ranked rows but fedavg, chosen by the numbers shown; here"
    assert f"{said} {chosen}" in table.notes
    for but, message in (
        ("fedavgg", "--best-except: unknown name 'fedavgg'"),
        ("fedavg,fedsam ρ=0.1,fedsam ρ=0.5", "--best-except: leaves no row"),
        ("fedavg,fedsam", "--best-except: leaves no row"),  # a method stands for all its rows
    ):
        with pytest.raises(UserError, match=message):
            build(collect("sweep"), best_except=but)


def test_rounds_to_the_best_of_a_method(store: Tracker) -> None:
    """Seed by seed: fedavg's best is 80 (round 2) and 60 (round 3). fedsam reaches 80 in round 1, 60 in round 2: 1.5
    against 2.5 rounds, a speed-up of 5/3. At α = 0.1 fedavg has not finished: there is nothing to reach."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in (0, 1)]
    cells += [cell(a, 0.1, 0) for a in (FEDAVG, SMALL)]
    outcomes = [history(70, 80, 75), history(10, 20, 60), history(80, 1, 2), history(59.9, 60, 99), ("failed", 10), 90]
    write(store, cells, outcomes)
    table = build(collect("sweep"), "rounds_to:fedavg", reference="fedavg")
    one, other = table.columns
    assert [table.entries[row, one].mean for row in table.rows] == [2.5, 1.5]
    assert table.entries["fedsam", one].change == pytest.approx(5 / 3)
    assert table.entries["fedsam", other].others == {"without a counterpart": 1}
    assert "best test accuracy of fedavg" in table.title
    with pytest.raises(UserError, match="unknown name 'rounds_to:fedavgg'; did you mean 'rounds_to:fedavg'"):
        build(collect("sweep"), "rounds_to:fedavgg")


def test_relative_flops_are_counted_for_the_runs_model(store: Tracker) -> None:
    """FedSAM passes twice for each pass of FedAvg; no MLflow metric is behind it. Fewer is better."""
    cells = [cell(a, 0.5, 0) for a in (SMALL, FEDAVG)]
    for one in cells:
        one["config"] |= {"data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [4]}}
    write(store, cells, [70] * len(cells))
    table = build(collect("sweep"), "relative_flops")
    assert ([one.mean for one in table.entries.values()], list(table.ranks.values())) == ([2, 1], [2, 1])
    cells[0]["config"]["model"] = {"name": "os:path"}
    write(store, cells, [], "own")
    with pytest.raises(UserError, match="relative_flops: os:path is a plug-in"):
        build(collect("own"), "relative_flops")


def test_bytes_kept_are_counted_for_the_runs_model(store: Tracker) -> None:
    """An MLP of 64 · 40 + 40 + 40 · 10 + 10 = 3,010 float32 parameters. FedDyn's client and server keep one vector."""
    cells = [cell(a, 0.5, 0) for a in ({"name": "feddyn", "alpha": 0.1}, FEDAVG)]
    for one in cells:
        one["config"] |= {"data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [40]}}
    write(store, cells, [70] * len(cells))
    by_client, by_server = (build(collect("sweep"), f"megabytes_kept_by_{whom}") for whom in ("client", "server"))
    assert [one.mean for one in by_client.entries.values()] == pytest.approx([4 * 3010 / 1e6, 0])
    assert [one.mean for one in by_server.entries.values()] == pytest.approx([8 * 3010 / 1e6, 4 * 3010 / 1e6])
    assert list(by_server.ranks.values()) == [2, 1]


HOSTILE = "=1+1|$x^$\n\x1b[31mred"


def test_names_steer_no_spreadsheet_terminal_or_markdown(store: Tracker, tmp_path: Path, call: Call) -> None:
    """A method called like a formula, with a cell's and a line's end, half a formula of mathtext and an escape code."""
    cells = [cell({"name": name}, 0.5, seed) for name in (HOSTILE, "-5") for seed in (0, 1)]
    write(store, cells, [50.0, 60.0, 70.0, 80.0])
    shown = call("tables", "sweep").out
    assert r"| =1+1\|\$x^\$\\n\\x1b\[31mred | <u>55.00 ± 7.07</u>" in shown
    assert "\x1b" not in shown
    assert r"=1+1$|$\$x\textasciicircum{}\$\textbackslash{}n" in to_latex(build(collect("sweep")))
    for form in ("csv", "seeds"):
        main(["sweep"], format=form, out=tmp_path / "a.csv")
        found = list(csv.reader(io.StringIO((tmp_path / "a.csv").read_text())))
        texts = {value for line in found for value in line}
        assert f"'{HOSTILE}" in texts
        assert "-5" in texts
        assert not any(text.startswith("=") for text in texts)
    figures("sweep", kind="curves", out=tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == 1


def test_cells_of_different_environments_are_said(store: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two cells was run with another torch: the table and the report name the tag with both values."""
    cells = [cell(FEDAVG, 0.5, seed) for seed in (0, 1)]
    write(store, cells, [60])
    tags = make_environment_tags()
    monkeypatch.setattr("fedray.tracking.tracker.make_environment_tags", lambda: tags | {"environment.torch": "0.1"})
    write(store, cells, [None, 61])
    (warning,) = [note for note in build(collect("sweep")).notes if note.startswith("WARNING")]
    assert f"torch {tags['environment.torch']} (1 cell), 0.1 (1 cell)" in warning
    assert warning in make_page(collect("sweep"), ["last10_test_accuracy"])


CHOSEN: dict[str, Any] = {
    **{"stage": "s/tune", "select": "last10_validation_accuracy", "held_out": {"fraction": 0.2, "from": "clients"}},
    **{"train_on": "all", "seeds": [100, 101], "searcher": "sobol", "scheduler": "", "score": 91.234},
    **{"draws": 8, "finished": 7, "rounds": 640, "gradients": 12800.0, "edges": ["training.lr"]},
    "values": {"training.lr": 0.5, "algorithm.mu": 0.01},
    "ranges": {"training.lr": "[0.01, 1], log", "algorithm.mu": "[0.001, 1], log"},
}


def test_a_method_that_no_draw_of_a_tune_stage_finished_is_named_below(store: Tracker) -> None:
    """SAM finished with one of two seeds, FedAvg with both; while a cell is missing nothing is said."""
    draws = [cell(a, 0.5, seed) | {"label": f"{a['name']} s{seed}"} for a in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, [cell(FEDAVG, 0.5, 2) | {"tuned": CHOSEN | {"ranges": {}, "edges": []}}], (50,), name="s")
    write(store, draws, (10, 20, 30), name="s/tune")
    said = "fedsam: no draw finished with every seed of s/tune; left out"
    assert said not in build(collect("s")).notes
    write(store, draws, (None, None, None, ("diverged", 30)), name="s/tune")
    assert said in build(collect("s")).notes


def table(**changes: Any) -> SweepTable:
    """Two settings of one method, one seed, whose chosen values differ."""
    rows = []
    for k, (alpha, lr) in enumerate((("0.1", "0.5"), ("0.5", "0.2"))):
        config = {"algorithm": {"name": "fedprox"}, "partition": {"name": "dirichlet", "alpha": alpha}}
        row = {"cell": str(k), "label": "fedprox", "status": "finished", "run_id": str(k), "spec": Cell("", "", config)}
        row |= {f"{section}.{key}": value for section, options in config.items() for key, value in options.items()}
        row |= {"seed": "0", "chosen.training.lr": lr, "chosen.algorithm.mu": "0.01"}
        rows.append(row | {"metrics.last10_test_accuracy": 80.0 + k})
    tuned = {"0": CHOSEN | changes, "1": CHOSEN | {"edges": []} | changes}
    cells = {hash: Cell(hash, "fedprox", {}, tuned=how) for hash, how in tuned.items()}
    return SweepTable(Sheet("s", cells), pd.DataFrame(rows))


def test_chosen_values_part_no_rows_and_are_told_below_with_range_budget_and_edge() -> None:
    found = build(table())
    assert (found.rows, found.columns) == (["fedprox"], ["dirichlet α=0.1", "dirichlet α=0.5"])
    said = "\n".join(found.notes)
    how = "sobol draws, mean over seeds 100, 101, on 20 % of every client's samples, held out"
    assert f"tuned by s/tune: best last10_validation_accuracy of {how}; these runs train on all of them" in said
    spent = "8 draws (1 did not finish), at most 640 rounds, at most 1.28e+04 gradients of a batch; scored 91.23"
    assert f"chosen for fedprox (dirichlet α=0.1): lr=0.5 of [0.01, 1], log, μ=0.01 of [0.001, 1], log; {spent}" in said
    (warned,) = [note for note in found.notes if note.startswith("WARNING")]
    edge = "lr=0.5 of fedprox (dirichlet α=0.1) is on the edge of [0.01, 1], log"
    assert warned == f"WARNING: {edge}: nothing was tried beyond it"
    assert "selected on the test set" not in found.title


def test_blocks_that_tried_other_values_of_a_choice_say_which() -> None:
    """Of two blocks one drew all of three values, the other 0.1 and 0.5; the third as the first."""
    tried = ("{0.1, 0.5, 1}", "{0.1, 0.5}, drawn from {0.1, 0.5, 1}", "{0.1, 0.5, 1}")
    blocks = [CHOSEN | {"stage": f"s/{k}/tune", "ranges": {"training.lr": one}} for k, one in enumerate(tried)]
    blocks = [one | {"edges": ["training.lr"] * (k == 1)} for k, one in enumerate(blocks)]
    whole = table()
    cells = pd.concat([whole.cells.iloc[:1].assign(cell=str(k), seed=str(k)) for k in range(3)], ignore_index=True)
    planned = {str(k): Cell(str(k), "", {}, tuned=one) for k, one in enumerate(blocks)}
    found = build(SweepTable(Sheet("s", planned), cells))
    (chosen,) = [note for note in found.notes if note.startswith("chosen for")]
    assert f"lr=0.5, 0.5, 0.5 of {tried[0]} or {tried[1]}; 24 draws" in chosen
    (warned,) = [note for note in found.notes if note.startswith("WARNING")]
    assert warned.endswith(f" is on the edge of {tried[1]} in 1 of 3 blocks: nothing was tried beyond it")


def test_a_choice_by_the_test_set_is_marked_where_the_numbers_are() -> None:
    """Of a small loss three figures; the row of the best repeats no choice."""
    same = "; scored 91.23, as 3 draws do; the first is taken"
    assert any(note.endswith(same) for note in build(table(tied=3)).notes)
    assert any(note.endswith("; scored 0.0432") for note in build(table(score=0.0432)).notes)
    assert len(build(table(), best_except="").notes) == len(build(table()).notes) + 1
    found = build(table(select="last10_test_accuracy", held_out=None))
    assert found.title.endswith("(selected on the test set)")
    assert any("SELECTED ON THE TEST SET" in note for note in found.notes)


def test_small_numbers_have_three_figures(store: Tracker) -> None:
    """0.0011 and 0.0049 are not both 0.00, and not tied."""
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    write(store, cells, [[row | {"proximal_loss": value} for row in history(1)] for value in (0.0011, 0.0049)])
    text = to_markdown(build(collect("sweep"), "proximal_loss", reference="fedavg"))
    assert "**0.00110** |" in re.sub(" +", " ", text), "no difference from itself"
    assert "<u>0.00490</u> (+0.00380)" in text


def test_speed_ups_and_differences_side_by_side(store: Tracker) -> None:
    """fedavg: 80 % in round 2, 81 at the end; fedsam: in round 1, 83 at the end. Twice as fast, 2 points better."""
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)], [history(70, 81), history(82, 83)])
    table = build(collect("sweep"), "rounds_to:80,test_accuracy", reference="fedavg")
    text = to_markdown(table)
    assert "**1.0** (2.00×)" in text
    assert "**83.00** (+2.00)" in text
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    (rounds,) = (line for line in lines if line["row"] == "fedsam" and "rounds_to" in line["column"])
    (accuracy,) = (line for line in lines if line["row"] == "fedsam" and "test_accuracy" in line["column"])
    assert (rounds["speedup"], rounds["delta"], accuracy["speedup"], accuracy["delta"]) == ("2", "", "", "2")
    page = make_page(collect("sweep"), ["speedup:80/fedavg"])
    assert "Difference from" not in page, "it compares already"


def test_a_draw_with_a_seed_that_diverged_is_not_the_first_row(store: Tracker) -> None:
    search = {"keys": ["algorithm.rho"], "select": "last10_test_accuracy"}
    cells = [cell(a, 0.5, seed) | {"search": search} for a in (LARGE, SMALL) for seed in (0, 1)]
    write(store, cells, [99, ("diverged", []), 70, 72])
    assert build(collect("sweep")).rows == ["fedsam ρ=0.1", "fedsam ρ=0.5"]


def test_the_best_accuracy_of_a_method_is_the_best_where_samples_are_held_out(store: Tracker) -> None:
    """fedavg selects round 2 (62 %) on the held-out samples; its best test accuracy is 70, fedsam's in round 3. Samples
    that the file of a partition holds out are known by what runs log."""
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    rows = [history(70, 62), history(50, 65, 71)]
    for accuracy, row in zip((40, 60), rows[0], strict=True):
        row["validation_accuracy"] = accuracy
    for one in cells:
        one["config"]["data"] = {"name": "digits", "validation": {"fraction": 0.1}}
    write(store, cells, rows)
    said = "test accuracy in % of the round that is best on the held-out samples"
    assert make_title("best_test_accuracy", collect("sweep").cells) == said
    table = build(collect("sweep"), "rounds_to:fedavg")
    assert [table.entries[row, table.columns[0]].mean for row in table.rows] == [1, 3]
    for one in cells:
        one["config"] |= {"data": {"name": "digits"}, "partition": {"name": "file", "path": "split.json"}}
    write(store, cells[:1], rows, "held out by a file")
    assert make_title("best_test_accuracy", collect("held out by a file").cells) == said
    write(store, cells[1:], [history(50, 65)], "none held out")
    assert "ON THE TEST SET" in make_title("best_test_accuracy", collect("none held out").cells)


def test_titles_say_which_rounds_are_averaged(store: Tracker) -> None:
    """Rounds 17 to 20 of 20; personal models are tested in round 20 only. Generic accuracy may be known in either."""
    rows = [row | {"personal_accuracy": 50.0, "generic_accuracy": 50.0} for row in history(*range(20))]
    one = cell(FEDAVG, 0.5, 0)
    one["config"] |= {"training": {"rounds": 20}, "evaluation": {"every": 10, "last": 10, "personal": {"every": 10}}}
    write(store, [one], [rows])
    titles = {name: build(collect("sweep"), f"last10_{name}").title for name in rows[0] if name != "round"}
    assert titles["test_accuracy"] == "sweep: test accuracy in %, mean of rounds 17 to 20"
    assert titles["personal_accuracy"] == "sweep: personal accuracy in %, round 20"
    assert titles["generic_accuracy"] == "sweep: generic accuracy in %, mean of the tests in rounds 17 to 20"
    (entry,) = build(collect("sweep")).entries.values()
    assert entry.mean == (16 + 17 + 18 + 19) / 4


def test_a_message_of_several_lines_stays_a_comment(store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0)
    parent = store.open_sweep(sheet("sweep", [one]))
    write_run(store, one, ending=Ending(Status.FAILED, "first\n\\input{more}"), parent=parent)
    lines = to_latex(build(collect("sweep"))).splitlines()
    assert next(line for line in lines if "more" in line).startswith("% failed: ")


def test_methods_without_fine_tuning_stand_beside_the_fine_tuned(store: Tracker) -> None:
    """With epochs 1 and 5 FedAvg logs both, and training alone logs one personal model. With 5 alone there is no 1."""
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, {"name": "local-only"})]
    tuned = {"personal_accuracy": 80.0, "personal_accuracy_e1": 70.0, "personal_accuracy_e5": 80.0}
    rows = [[row | each for row in history(1)] for each in (tuned, {"personal_accuracy": 75.0})]
    for one in cells:
        one["config"] |= {"evaluation": {"personal": {"epochs": [1, 5]}}}
    write(store, cells, rows)
    for epochs, value in ((1, 70), (5, 80)):
        table = build(collect("sweep"), f"personal_accuracy_e{epochs}")
        assert [one.mean for one in table.entries.values()] == [value, 75]
    assert "of the last round, after 5 epochs of fine-tuning if the method has any" in table.title
    cells[1]["config"]["evaluation"] = {"personal": {"epochs": 5}}
    write(store, cells, rows, "other")
    with pytest.raises(UserError, match="1 of 2 finished runs have not logged, local-only"):
        build(collect("other"), "personal_accuracy_e1")


def test_figures_name_the_runs_that_never_reached_the_target(store: Tracker, tmp_path: Path, call: Call) -> None:
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL, LARGE)], [history(70, last) for last in (90, 75, 85)])
    for options, which in (("methods", ""), ("sensitivity --x rho", "test_accuracy+")):
        asked = ("--kind", *options.split(), "--metric", f"{which}rounds_to:80", "--out", str(tmp_path))
        said = f"not drawn, never at the target, or without one{' (rounds_to:80)' * bool(which)}: fedsam-0.1-0.5-0\n"
        assert call("figures", "sweep", *asked).out.endswith(said)


def of_rounds(one: dict[str, Any], rounds: int) -> dict[str, Any]:
    return one | {"hash": f"{one['hash']}-{rounds}", "config": one["config"] | {"training": {"rounds": rounds}}}


def test_settings_of_two_sweeps_that_have_no_value_in_common_are_columns(store: Tracker) -> None:
    """Neither ranked nor subtracted: fedavg of 4 rounds, another method of 6. A value that both have mixes nothing."""
    write(store, [of_rounds(cell(FEDAVG, 0.5, 0), 4)], [60])
    write(store, [of_rounds(cell(SMALL, 0.5, 0), 6)], [70], name="longer")
    write(store, [of_rounds(cell(SMALL, 0.5, 0), rounds) for rounds in (4, 6)], [65, 70], name="both")
    apart = build(collect("sweep", "longer"), reference="fedavg")
    assert (apart.columns, apart.ranks) == (["dirichlet α=0.5 rounds=4", "dirichlet α=0.5 rounds=6"], {})
    assert apart.entries["fedsam", "dirichlet α=0.5 rounds=6"].change is None
    assert build(collect("sweep", "both"), reference="fedavg").entries["fedsam", "dirichlet α=0.5 rounds=4"].change == 5


def test_rows_of_a_sweep_that_differ_in_a_setting_say_so(store: Tracker, tmp_path: Path, call: Call) -> None:
    write(store, [of_rounds(cell(FEDAVG, 0.5, 0), 4), of_rounds(cell(SMALL, 0.5, 0), 6)], [60, 70])
    said = "rows differ in training.rounds: 4 of fedavg; 6 of fedsam"
    assert f"\n- {said}\n" in call("tables", "sweep").out
    assert said in build(collect("sweep")).captioned
    assert said in call("compare", "sweep").out
    assert said in call("figures", "sweep", "--out", str(tmp_path)).out
    assert said not in call("tables", "sweep", "--cols", "training.rounds").out


def test_compare_escapes_names(store: Tracker, call: Call) -> None:
    names = {"fedavg": "Fed|Avg", "fedsam": "*S*"}
    cells = [cell(a, 0.5, seed) | {"names": names} for a in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, [60, 61, 62, 63])
    told = call("compare", "sweep", "--reference", "fedavg").out
    assert "difference to Fed\\|Avg" in told
    assert "| \\*S\\* " in told


def test_rounds_of_the_generic_accuracy_say_so(store: Tracker) -> None:
    """FedAvg's is its test accuracy in each round; the other's is measured in round 3 alone."""
    tested = history(50, 80, 80)
    same = [row | {"generic_accuracy": row["test_accuracy"]} for row in tested]
    other = [*tested[:2], tested[2] | {"generic_accuracy": 85.0}]
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)], [same, other])
    table = build(collect("sweep"), "rounds_to:80")
    assert [one.mean for one in table.entries.values()] == [2, 3]
    said = "of fedsam the generic accuracy counts, that of their clients' models, in the rounds that test it"
    assert said in table.notes
