"""A sweep's page, opened in a real browser."""

import io
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from fedray.analysis import report
from fedray.analysis.data.collect import SweepTable, collect
from fedray.analysis.plots.curves import count_lines, draw_curves, draw_multiples
from fedray.cells.cell import Cell
from fedray.cells.metric import DEFAULT
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.common.process import INTERRUPTED
from fedray.tracking.outbox import CellRun
from fedray.tracking.store import find_runs, open_store
from fedray.tracking.tracker import Tracker
from tests.analysis.plots.test_bars import write_clients
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, sheet, write, write_run
from tests.conftest import each, use_store


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[tuple[SweepTable, str]]:
    """A sweep and its page: two settings; one diverged run, one that has not begun."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        use_store(folder, patch, empty_store)
        cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL) for seed in (0, 1)]
        finished = (history(*[0] * 8, 60 + k, 70 + k) for k in range(6))
        write(Tracker(), cells, [*finished, ("diverged", 9)], "<b>sweep")
        sweep = collect("<b>sweep")
        yield sweep, report.make_page(sweep, ["last10_test_accuracy", "test_accuracy"])


def with_picture(store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0) | {"names": {"fedavg": "FedAvg"}}
    one["config"]["training"] = {"rounds": 100, "lr": 0.01, "clip_norm": 10}
    drawn, figure = io.BytesIO(), Figure(figsize=(3, 2))
    figure.subplots().plot([1, 2])
    figure.savefig(drawn, format="png")
    parent = store.open_sweep(sheet("drawn", [one], description="what it is about"))
    files, measured = {"partition.png": drawn.getvalue()}, {"seconds_per_round": 0.25}
    hashes = {"theta_sha256": "ab" * 32}
    write_run(store, one, history(50, 60), parent=parent, files=files, totals=measured, hashes=hashes)


def test_curves_of_many_methods_have_a_panel_each(store: Tracker) -> None:
    """Nine methods, each in colour over the grey lines of the other eight, below the figure that compares them."""
    cells = [cell({"name": "fedsam", "rho": rho}, 0.5, seed) for rho in range(1, 10) for seed in (0, 1)]
    write(store, cells, [history(k, 10 + k) for k in range(18)])
    found = collect("sweep")
    (figure,) = draw_multiples(found).values()
    assert len(figure.axes) == 9
    area = next(area for area in figure.axes if area.get_title() == "fedsam ρ=2")
    *others, own = [tuple(line.get_ydata()) for line in area.lines]
    assert own == (2.5, 12.5), "the mean of cells 2 and 3"
    assert len(others) == 9
    assert figure.get_label() == "grey: the other methods; mean over 2 seeds"
    (uri,) = (uri for _, uri in report._show({"": figure}))
    (common,) = report._show(draw_curves(found))
    assert report._draw_curves(found) == [common, ("dirichlet α=0.5; grey: the other methods; mean over 2 seeds", uri)]
    write(store, cells[:12], [50] * 12, name="six")
    write(store, [cell({"name": "fedsam", "rho": rho}, 0.1, 0) for rho in (1, 2)], [history(50)] * 2, name="once")
    (figure,) = draw_multiples(collect("once")).values()
    assert {line.get_marker() for area in figure.axes for line in area.lines} == {"o"}, "one round is a dot"
    assert count_lines(found) == 9
    ((said, _),) = report._draw_curves(collect("six"))
    assert said == "band: ± standard deviation over 2 seeds", "six share a panel"


def test_what_is_missing_comes_first_by_name_and_text_is_escaped(paged: tuple[SweepTable, str]) -> None:
    _, text = paged
    assert "<b>sweep" not in text
    assert "&lt;b&gt;sweep" in text
    assert "8 cells: 6 finished, 1 diverged, 1 missing" in text
    missing = text[text.index('id="missing"') : text.index('<h2 id="results">')]
    assert re.findall(r"<li>(\w+: \S+)", missing) == ["diverged: fedsam-0.1-0.1-0:", "missing: fedsam-0.1-0.1-1"]
    assert ": why (" in missing
    # seeds 0 and 1 of fedavg at α = 0.5, last fifth of 10 rounds: means of (60, 70), (61, 71): 65.5 ± 0.71; last: 70.5
    assert "<u>65.50 ± 0.71</u>" in text
    assert "<u>70.50 ± 0.71</u>" in text
    assert "- (1 diverged, 1 missing)" in text
    assert text.count('alt="Learning curves"') == 1, "a panel per setting"
    assert "No run yet that holds a picture of its partition." in text
    # fedsam - fedavg at α = 0.5: 2 for both seeds; at α = 0.1 no pair
    assert "<td>+2.00</td></tr>" in text, "a verdict would need more seeds"
    assert "2 paired seeds a setting are too few for an interval or a test" in text
    assert text.index('id="curves"') < text.index('id="comparison"')
    assert 'alt="Difference from fedavg' not in text, "intervals would need more seeds"


def test_a_page_says_the_state_of_a_sweep_and_no_commands(store: Tracker) -> None:
    cells = [cell(FEDAVG, 0.1, seed) for seed in range(3)]
    write(store, cells[:1], [50])
    write(store, cells[1:], [60, None])
    parent = store.open_sweep(sheet("sweep", cells[1:]))
    write_run(store, cells[2], [], Ending(Status.INTERRUPTED, INTERRUPTED), parent=parent)
    text = report.make_page(collect("sweep"), [DEFAULT])
    assert "1 finished cell of this name is not among these; tables leave them out: the file" in text
    assert "<li>1 of 2 cells interrupted" in text
    assert f"<li>interrupted: {cells[2]['label']} (" in text
    assert "fedray rm" not in text
    assert "fedray sweep" not in text
    assert "again" not in text


def test_three_seeds_have_a_picture_of_their_differences(store: Tracker) -> None:
    write(store, [cell(method, 0.1, seed) for method in (FEDAVG, SMALL) for seed in range(3)], [50, 51, 52, 53, 54, 56])
    text = report.make_page(collect("sweep"), ["final_test_accuracy"])
    assert text.count('alt="Difference from fedavg"') == 1
    assert "<figcaption>mean over 3 seeds; line: its 95% interval, uncorrected</figcaption>" in text


def test_pictures_settings_environment(store: Tracker) -> None:
    with_picture(store)
    text = report.make_page(collect("drawn"), ["test_accuracy"])
    assert 'id="missing"' not in text
    assert "what it is about" in text
    assert '<p>training.rounds 100; all <a href="#settings">settings</a></p>' in text, "the others are not in the file"
    assert f'<td>torch</td><td class="mono">{version("torch")}</td><td>1</td>' in text
    assert "<td>commit of fedray</td>" in text
    page_ = Page(text)
    assert ["partition.alpha", "0.5"] in page_.tables["same"]
    assert ["training.rounds", "100"] in page_.tables["same"]
    assert ["partition.min_size", "1"] in page_.tables["same"], "the default"
    (folded,) = re.findall(r"<details><summary>2 more with fedray's default</summary>(.*?)</details>", text, re.DOTALL)
    assert Page(folded).tables["same"] == [["partition.min_size", "1"], ["training.rounds", "100"]]
    assert page_.changed == ["training.lr 0.01 (default: 0.1)", "training.clip_norm 10 (default: none)"], "α has none"
    (row,) = page_.tables["cells"][1:]
    assert [row[k] for k in (0, 1, 2, 5)] == ["FedAvg dirichlet α=0.5 s0", "finished", "60.00", "0.25"]
    assert row[6] == "abababababababab"
    assert text.count("data:image/png;base64,") == 2


class Page(HTMLParser):
    """A page, read as a browser reads it: sections, links, and tables by class as rows of text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links, self.headings = list[str](), list[str](), list[str]()
        self.tables, self.changed = dict[str, list[list[str]]](), list[str]()
        self._table, self._row, self._cell = "", list[str](), ""
        self._marked = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [found["href"] or ""] if tag == "a" else []
        if tag == "table":
            self._table = found.get("class") or "other"
            self.tables.setdefault(self._table, [])
        if tag == "tr":
            self._row, self._marked = [], found.get("class") == "changed"
        if tag in ("td", "th", "h2", "li"):
            self._cell = ""

    def handle_data(self, data: str) -> None:
        self._cell += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._row.append(self._cell.strip())
        if tag == "h2":
            self.headings.append(self._cell.strip())
        if tag == "tr":
            self.tables[self._table].append(self._row)
            self.changed += [" ".join(self._row)] if self._marked else []


def test_none_is_a_value_of_a_key_that_no_component_lacks(store: Tracker) -> None:
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    cells[1]["config"]["training"] = {"clip_norm": 10}
    write(store, cells, (60, 61))
    same, several = report.split_settings(collect("sweep").cells)
    assert several == [("algorithm.name", "fedavg, fedsam"), ("training.clip_norm", "none, 10")]
    assert [one["value"] for one in same if one["key"] == "algorithm.rho"] == ["0.1 (fedsam)"]


def test_numbers_with_three_values_are_drawn(store: Tracker) -> None:
    """ρ has three values, α two: one picture, between the curves and the partitions."""
    cells = [cell({"name": "fedsam", "rho": rho}, alpha, 0) for rho in (0.1, 0.2, 0.5) for alpha in (0.1, 0.5)]
    write(store, cells, range(60, 66))
    sections = list(report._draw_sections(collect("sweep"), DEFAULT))
    assert [section.heading for section in sections] == ["Learning curves", "Sensitivity", "Partitions"]
    ((name, _),) = sections[1].pictures
    assert name.startswith("ρ (algorithm.rho); one seed; mean of the tests in ")
    headings = [section.heading for section in report._draw_sections(collect("sweep"), "rounds_to:99")]
    assert headings == ["Learning curves", "Partitions"], "nobody gets there"


def test_cells_have_accuracies_and_links(paged: tuple[SweepTable, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For a file store the run's id is shown; for a server its page, without the password."""
    sweep, plain = paged[0], Page(paged[1])
    header, *cells = plain.tables["cells"]
    assert header[:4] == ["cell", "status", "last10_test_accuracy", "run"]
    assert [row[2] for row in cells] == ["65.00", "66.00", "67.00", "68.00", "69.00", "70.00", "", ""]
    assert cells[0][3] == sweep.cells["run_id"][0][:8], "what is left is in its title"
    assert f'<span title="{sweep.cells["run_id"][0]}">{cells[0][3]}</span>' in paged[1]
    assert not [link for link in plain.links if "runs" in link]
    _, experiment = open_store()
    monkeypatch.setattr("fedray.analysis.report.store_uri", lambda: "http://me:secret@store:5000")
    monkeypatch.setattr("fedray.tracking.view.store_uri", lambda: "http://me:secret@store:5000")
    monkeypatch.setattr("fedray.tracking.store.open_store", lambda: (None, experiment))
    text = report.make_page(sweep, ["last10_test_accuracy"])
    links = [link for link in Page(text).links if "/runs/" in link]
    assert len(links) == 7, "one run has not begun"
    assert f'title="{sweep.cells["run_id"][0]}">{cells[0][3]}</a>' in text
    assert urlsplit(links[0]).hostname == "store"
    assert urlsplit(links[0]).fragment.split("?")[0] == f"/experiments/{experiment}/runs/{sweep.cells['run_id'][0]}"
    assert "me:secret" not in text


def test_a_pruned_draw_is_not_missing(store: Tracker) -> None:
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL, LARGE)], [60, ("pruned", 60), ("stopped", 60)])
    text = report.make_page(collect("sweep"), ["last10_test_accuracy"])
    found = Page(text)
    assert "missing" not in found.ids
    assert found.headings[0] == "Ended early"
    early = text[text.index('id="early"') : text.index('id="results"')]
    assert "1 pruned by the scheduler, 1 stopped by `stop` or a callback" in early
    write(store, [cell(a, 0.1, 0) for a in (FEDAVG, SMALL)], [("stopped", history(70, 80))] * 2, name="all")
    assert {"comparison", "curves"} <= {*Page(report.make_page(collect("all"), ["rounds_to:80"])).ids}
    assert "comparison" not in Page(report.make_page(collect("all"), ["last10_test_accuracy"])).ids
    assert re.findall(r"<li>(\w+: \S+)", early) == ["pruned: fedsam-0.1-0.5-0", "stopped: fedsam-0.5-0.5-0"]


def test_clients_and_classes(store: Tracker) -> None:
    """A line per method, and the matrices folded away."""
    write_clients(store)
    found = Page(report.make_page(collect("sweep"), ["test_accuracy"]))
    assert {"clients", "confusion"} <= set(found.ids)
    header, one, other = found.tables["fairness"]
    assert header == ["setting", "method", "mean", "deviation", "worst tenth", "best tenth", "clients", "seeds"]
    assert other == ["dirichlet α=0.5", "fedsam", "50.00", "0.00", "50.00", "50.00", "11", "1"]
    assert one[1] == "fedavg"


def test_without_any_run(store: Tracker) -> None:
    store.open_sweep(sheet("planned", [cell(FEDAVG, 0.5, 0)]))
    text = report.make_page(collect("planned"), ["last10_test_accuracy"])
    assert "No finished run to draw." in text
    assert "no run yet" in text


def test_in_a_browser(store: Tracker, tmp_path: Path) -> None:
    """The console is empty; a request to the network would be reported there, as the policy refuses it. Pictures load.
    Scripts are forbidden too; a copy without the policy measures the pictures."""
    with_picture(store)
    report.main("drawn", "test_accuracy", out=tmp_path / "page.html")
    dom, console = opened(tmp_path / "page.html")
    assert console == []
    assert dom.count("<img") == 2
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    (tmp_path / "fetching.html").write_text(text.replace("<p>what", "<img src='https://example.org/a.png'><p>what"))
    _, console = opened(tmp_path / "fetching.html")
    assert "Content Security Policy" in console[0], "this test can fail"
    widths = measure(tmp_path / "page.html", "[...document.images].map(i => i.naturalWidth).join()").split(",")
    assert [int(width) > 200 for width in widths] == [True, True]
    opened(tmp_path / "page.html", f"--screenshot={tmp_path / 'page.png'}")
    picture = matplotlib.image.imread(tmp_path / "page.png")
    assert picture.shape[:2] == (1600, 1200)
    assert np.std(picture[:, :, :3]) > 0.05, "a blank page"


def run(one: Mapping[str, Any], hours: float, status: str = "finished", sweep: str = "s", again: bool = False) -> None:
    """Write a run that took so long; with `again` it replaces the earlier one."""
    store = Tracker()
    made = CellRun(Cell.from_json(one), {"fedray.sweep": sweep}, began=0.0, ended=3600 * hours)
    if again:
        store.supersede([one["hash"]])
    store.open_cell(made)
    if status != "running":
        store.close_cell(made, Record(Ending(Status(status)), history(50)))


def test_every_run_is_counted_once_with_its_sweep_and_outcome(store: Tracker) -> None:
    """Shown: 2 + 3 h, of which the second with 4 processes on half a GPU and 2 CPUs each (24 CPU-h, 6 GPU-h). On the
    way: a first try of 5 h that was superseded, 1 h that diverged, tuning of 7 h and a failed 0.5 h, a smoke version of
    0.25 h, settings that the file lists no more (4 h), 6 h deleted, and one that was killed without a time. Another
    sweep's 8 h are shown by this one; its 100 h are not."""
    big, shared = cell(SMALL, 0.5, 0), cell(SMALL, 0.5, 1)
    big["config"]["runtime"] = {"actors": 4, "cpus_per_actor": 2.0, "gpus_per_actor": 0.5}
    final = [cell(FEDAVG, 0.5, 0), big, cell(FEDAVG, 0.5, 1), cell(FEDAVG, 0.5, 2), shared]
    tune = [cell(FEDAVG, 0.1, seed) for seed in (100, 101)]
    store.open_sweep(sheet("s", final))
    store.open_sweep(sheet("s/tune", tune))
    run(final[0], 5)
    run(final[0], 2, again=True)
    run(big, 3)
    run(final[2], 1, "diverged")
    run(final[3], 9, "running")
    run(shared, 8, sweep="another")
    run(tune[0], 7, sweep="s/tune")
    run(tune[1], 0.5, "failed", "s/tune")
    run(cell(FEDAVG, 0.9, 0), 0.25, sweep="s-smoke")
    run(cell(FEDAVG, 0.7, 0), 4)
    run(lost := cell(FEDAVG, 0.8, 0), 6)
    (found,) = find_runs(store.client, store.experiment, [lost["hash"]])
    store.client.delete_run(found.info.run_id)
    run(cell(FEDAVG, 0.6, 0), 100, sweep="another")
    assert report._describe_hours(report.measure_hours(collect("s"))) == [
        "finished and shown: 3 runs, 13 hours, 34 CPU-hours, 6 GPU-hours",
        "s-smoke: finished: 1 run, 0.25 hours, 0.25 CPU-hours, 0 GPU-hours",
        "s/tune: failed: 1 run, 0.5 hours, 0.5 CPU-hours, 0 GPU-hours",
        "s/tune: finished: 1 run, 7 hours, 7 CPU-hours, 0 GPU-hours",
        "s: deleted: 1 run, 6 hours, 6 CPU-hours, 0 GPU-hours",
        "s: diverged: 1 run, 1 hours, 1 CPU-hours, 0 GPU-hours",
        "s: finished: 1 run, 4 hours, 4 CPU-hours, 0 GPU-hours",
        "s: running: 1 run, 0 hours, 0 CPU-hours, 0 GPU-hours, 1 of them left no time",
        "s: superseded: 1 run, 5 hours, 5 CPU-hours, 0 GPU-hours",
        "all: 11 runs, 36.8 hours, 57.8 CPU-hours, 6 GPU-hours, 1 of them left no time",
    ]


def test_hours_of_all_blocks_are_counted(store: Tracker) -> None:
    """Shown 1 and 2 h, before which 5 h each were superseded; tuning of 3 and 4 h."""
    for k in (0, 1):
        final, tune = cell(FEDAVG, 0.5, k), cell(FEDAVG, 0.1, k)
        store.open_sweep(sheet(f"s/{k}", [final]))
        store.open_sweep(sheet(f"s/{k}/tune", [tune]))
        run(final, 5, sweep=f"s/{k}")
        run(final, 1 + k, sweep=f"s/{k}", again=True)
        run(tune, 3 + k, sweep=f"s/{k}/tune")
    hours = report.measure_hours(collect("s")).groupby("what")["hours"].sum().to_dict()
    tuned = {"s/0/tune: finished": 3, "s/1/tune: finished": 4}
    assert hours == tuned | {"finished and shown": 3, "s/0: superseded": 5, "s/1: superseded": 5}


@each(
    *(("12.5", None, 12.5), (None, None, None), ("nan", 0.3, 30.0)),
    ("12.5", 0.3, 30.0),  # 30 s of rounds: 20 of them were made by a call that was killed
    (None, 0.3, 30.0),  # a run of an older version
)
def test_the_seconds_of_a_run(tag: str | None, per_round: float | None, expected: float | None, store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0)
    one["config"]["training"] = {"rounds": 100}
    made = CellRun(Cell.from_json(one), {"fedray.untimed": "2"})
    store.open_sweep(sheet("s", [one]))
    store.open_cell(made)
    totals = {} if per_round is None else {"seconds_per_round_with_evaluation": per_round}
    store.close_cell(made, Record(Ending(Status.FINISHED), history(50), totals))
    client, _ = open_store()
    if tag is None:
        client.delete_tag(made.id, "fedray.seconds")
    else:
        client.set_tag(made.id, "fedray.seconds", tag)
    sweep = collect("s")
    (hours,) = report.measure_hours(sweep)["hours"]
    assert 3600 * hours == pytest.approx(np.nan if expected is None else expected, nan_ok=True)
    assert "2 killed calls are not included" in report._describe_hours(report.measure_hours(sweep))[0]


NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--enable-logging=stderr", "--window-size=1200,1600",
]  # fmt: skip


def browser() -> str:
    """Return its path; skips if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser here ({', '.join(NAMES)}); Debian's package is chromium")
    return found


def measure(page: Path, what: str) -> str:
    """What an expression of JavaScript says of a copy of the page without its policy."""
    text, script = page.read_text(encoding="utf-8"), f"<script>document.title = {what}</script></body>"
    policy = re.search(r"<meta http-equiv.*", text)
    assert policy is not None
    copy = page.with_name("measured.html")
    copy.write_text(text.replace(policy[0], "").replace("</body>", script), encoding="utf-8")
    title = re.search("<title>(.*)</title>", opened(copy)[0])
    assert title is not None
    return title[1]


def opened(page: Path, flag: str = "--dump-dom") -> tuple[str, list[str]]:
    """The page's DOM once it is loaded, and what the console says."""
    command = [browser(), *FLAGS, f"--user-data-dir={page.parent / 'profile'}", flag, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r":CONSOLE(?::|\().*", done.stderr)
