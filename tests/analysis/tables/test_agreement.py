"""`fedray check`: a paper whose tables and macros are compared with a store."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from fedray.analysis.commands.check import main as check
from fedray.analysis.commands.tables import main as tables
from fedray.analysis.tables.build import TableOptions
from fedray.analysis.tables.paper import LARGEST, parse_rows, read_paper
from fedray.cells.metric import DEFAULT
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write, write_run

PAPER = r"""\documentclass{article}
\input{numbers} % \fedray{not/used} \input{nothing}
\newcommand{\acc}[1]{\fedray{sweep/#1/dirichlet0.5}}
\begin{document}
FedAvg has \fedray{sweep/fedavg/dirichlet0.5}, \acc{fedsam}.
\input table
\include{glyphs}
\end{document}
"""
Change = Callable[[str], str]


@pytest.fixture
def paper(store: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """fedavg 80 and 84, fedsam 90 and 92, at two α; a paper with a table, with macros, and with inputs."""
    cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, [80, 84, 90, 92, 60, 61, 50, 51])
    write(store, cells[:2], [None, None], "other")
    monkeypatch.chdir(tmp_path)
    tables(["sweep"], "latex", reference="fedavg", out=Path("table.tex"), macros=Path("numbers.tex"))
    Path("paper.tex").write_text(PAPER, encoding="utf-8")
    return Path("paper.tex")


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_paper_that_agrees(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two columns of two rows; four macros of each: the entry, its mean, deviation and change."""
    capsys.readouterr()
    check(paper, ["sweep"])
    assert capsys.readouterr().out.splitlines() == [
        "paper.tex, line 7: glyphs is not here and was not read",
        "paper.tex, line 3: \\fedray{sweep/#1/dirichlet0.5} has a computed key, which only LaTeX knows",
        "4 entries of tables and 16 macros agree with the store",
    ]


def test_a_number_changed_by_hand_is_found(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One digit in the table, one in a macro; a row of another name; spaces and rules do not matter."""
    capsys.readouterr()
    rewrite(Path("table.tex"), r"\textbf{91.00 $\pm$ 1.41}", r"\textbf{91.10 $\pm$ 1.41}")
    rewrite(Path("table.tex"), "\\midrule\n", "\\cmidrule(lr){2-3}\n\n")
    rewrite(
        Path("numbers.tex"), "fedsam/dirichlet0.1/mean\\endcsname{50.50}", "fedsam/dirichlet0.1/mean\\endcsname{55.50}"
    )
    with pytest.raises(typer.Exit) as ended:
        check(paper, ["sweep"])
    assert ended.value.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("numbers.tex, line ")
    assert lines[0].endswith(": sweep/fedsam/dirichlet0.1/mean: found 55.50; the store has 50.50")
    assert lines[1] == (
        r"table.tex, line 11: fedsam, dirichlet $\alpha$=0.5: found \textbf{91.10 $\pm$ 1.41} (+9.00); "
        r"the store has \textbf{91.00 $\pm$ 1.41} (+9.00)"
    )
    assert lines[-1] == "2 of 4 entries of tables and 16 macros differ from the store"
    rewrite(Path("table.tex"), "\nfedavg &", "\nFedAvg &")
    with pytest.raises(typer.Exit):
        check(Path("table.tex"), ["sweep"])
    out = capsys.readouterr().out
    assert (
        r"FedAvg, dirichlet $\alpha$=0.5: found \underline{82.00 $\pm$ 2.83} (+0.00); the store has no such entry"
        in out
    )
    assert "table.tex, line 5: 2 of the store's 4 entries are not in the source" in out


def test_a_store_that_has_changed_is_found(paper: Path, store: Tracker, capsys: pytest.CaptureFixture[str]) -> None:
    """fedsam's seed 1 at α = 0.1 runs again and has 71: mean 60.5 instead of 50.5, and another best."""
    one = cell(SMALL, 0.1, 1)
    store.supersede([one["hash"]])
    write_run(store, one, history(71), parent=None, again=False)
    capsys.readouterr()
    with pytest.raises(typer.Exit):
        check(paper, ["sweep"])
    out = capsys.readouterr().out
    assert "sweep/fedsam/dirichlet0.1/mean: found 50.50; the store has 60.50" in out
    assert "sweep/fedavg/dirichlet0.1/mean" not in out


@pytest.mark.parametrize(
    ("change", "names", "message"),
    [
        (lambda text: text, ["other"], "numbers.tex, line 1: found a list of macros of sweep; checked against other: "),
        (lambda text: text, ["swep"], "sweep: unknown name 'swep'; did you mean 'sweep'?"),
        (
            lambda text: text.replace("sweep/fedavg", "sweep/fedavgg"),
            ["sweep"],
            r"paper.tex, line 5: \fedray: unknown name 'sweep/fedavgg/dirichlet0.5'; did you mean 'sweep/fedavg/diri",
        ),
        (lambda text: "nothing", ["sweep"], "paper.tex: holds no table and no macro that fedray wrote"),
        (lambda text: "% fedray tables sweep --format latex\n", ["sweep"], r"paper.tex, line 1: the table has no \end"),
        (
            lambda text: "% fedray tables sweep --rm x\n",
            ["sweep"],
            "paper.tex, line 1: found '--rm' in `fedray tables`",
        ),
        (lambda text: "% fedray tables 'sweep\n", ["sweep"], 'paper.tex, line 1: found "fedray tables \'sweep";'),
        (
            lambda text: "% fedray tables sweep --reference x --format latex\n\\end{tabular}",
            ["sweep"],
            "paper.tex, line 1: --reference: unknown name 'x'",
        ),
        (
            lambda text: "% fedray tables sweep --format latex\na & b \\\\\nc & d & e \\\\\n\\end{tabular}",
            ["sweep"],
            "paper.tex, line 3: found 3 entries in the row 'c'; the first row has 2",
        ),
        (
            lambda text: "\\expandafter\\def\\csname fedray@x\\endcsname{1}%",
            ["sweep"],
            "paper.tex, line 1: a macro of fedray without the comment `% fedray tables ...` above it",
        ),
        (
            lambda text: (
                text + "% fedray tables sweep --macros b.tex\n"
                "\\expandafter\\def\\csname fedray@sweep/fedavg/dirichlet0.5\\endcsname{1}%"
            ),
            ["sweep"],
            "numbers.tex, line ",
        ),
    ],
)
def test_bad_input(paper: Path, change: Change, names: list[str], message: str) -> None:
    paper.write_text(change(paper.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(UserError) as error:
        check(paper, names)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.tex").write_bytes(b"\xe4")
    for name, why in (("latin.tex", "is not UTF-8"), ("none.tex", "cannot be read: No such file")):
        with pytest.raises(UserError, match=f"{name}: {why}"):
            read_paper(tmp_path / name)


def test_files_that_input_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.tex").write_text(r"\input{b}\fedray{x}", encoding="utf-8")
    (tmp_path / "b.tex").write_text("\\input{a.tex}\n", encoding="utf-8")
    assert [path.name for path in read_paper(tmp_path / "a.tex").files] == ["a.tex", "b.tex"]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Reading it would wait for a writer; so does what a source takes in, which is named as one that is not here."""
    os.mkfifo(tmp_path / "pipe.tex")
    with pytest.raises(UserError, match=r"pipe\.tex: cannot be read: it is not a regular file"):
        read_paper(tmp_path / "pipe.tex")
    (tmp_path / "a.tex").write_text(r"\input{pipe}", encoding="utf-8")
    assert [one.text for one in read_paper(tmp_path / "a.tex").unread] == ["pipe"]


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.tex").open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(UserError, match=f"cannot be read: it has more than {LARGEST} bytes"):
        read_paper(tmp_path / "a.tex")


def test_a_chain_of_inputs_has_no_depth(tmp_path: Path) -> None:
    """2,000 files, each of which takes in the next: Python stops at 1,000 calls in each other."""
    for number in range(2000):
        (tmp_path / f"a{number}.tex").write_text(rf"\input{{a{number + 1}}}", encoding="utf-8")
    paper = read_paper(tmp_path / "a0.tex")
    assert [len(paper.files), len(paper.unread)] == [2000, 1]


@pytest.mark.parametrize(
    "line",
    [
        r"\input{", r"\input{x", "\\input " + "x" * 50, r"\fedray{", r"\fedray{a", r"\\\\%", r"\%\%\%", "% fedray",
        "%" * 60,
        "\\expandafter\\def\\csname fedray@", "  \\input\t", r"\begin{tabular}{l}", "{" * 60, r"\include{}", "\\" * 60,
    ],
)  # fmt: skip
def test_100000_odd_commands_take_seconds(tmp_path: Path, line: str) -> None:
    """They took a minute. Both as lines, and as one line."""
    for glue in ("\n", ""):
        (tmp_path / "a.tex").write_text(glue.join([line] * 100_000), encoding="utf-8")
        began = time.process_time()
        with contextlib.suppress(UserError):
            read_paper(tmp_path / "a.tex")
        assert time.process_time() - began < 10


def test_rows_of_any_layout() -> None:
    r"""Escaped signs stay in their entries; a row may be broken over lines, end with `\\[2pt]` and follow rules."""
    body = "{} & a \\& b \\\\ \\midrule\nx\\_y &\n 1\\% \\\\[2pt]\n\\bottomrule"
    assert {key: found.text for key, found in parse_rows(body).items()} == {(r"x\_y", r"a \& b"): r"1\%"}


@pytest.mark.parametrize(
    "options",
    [
        TableOptions(),
        TableOptions("rounds_to:80", "algorithm,training.lr", "partition", "fedsam ρ=0.1", "a/table1", "x,y", "fedavg"),
        TableOptions(best_except=""),
        TableOptions(reference='it\'s "odd" --format; $(x) \\'),
    ],
)
def test_a_command_is_read_back(options: TableOptions) -> None:
    command = options.to_command("a/sweep", {"format": "latex"})
    assert TableOptions.parse(command, "x") == ("a/sweep", options, {"format"})
    assert TableOptions().to_command("s", {}) == "fedray tables s"
    assert TableOptions().metric == DEFAULT
