"""A sweep's page, opened in a real browser."""

import io
import re
from importlib.metadata import version
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis.collect import collect
from analysis.report import main, page
from fedray.common.errors import UserError
from fedray.tracking.tracker import CellRun, Tracker
from tests.analysis.browser import opened, pictured
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write


def some_runs(store: Tracker) -> None:
    """Two settings; of one seed a picture of its partition; one diverged run, one that has not begun."""
    cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL) for seed in (0, 1)]
    outcomes = {one["hash"]: ("finished", history(60 + k, 70 + k)) for k, one in enumerate(cells[:6])}
    write(store, cells, outcomes | {cells[6]["hash"]: ("diverged", history(9))}, "<b>sweep")


def with_picture(store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0)
    drawn, figure = io.BytesIO(), Figure(figsize=(3, 2))
    figure.subplots().plot([1, 2])
    figure.savefig(drawn, format="png")
    parent = store.open_sweep("drawn", "what it is about", [one])
    run = CellRun()
    store.open_cell(run, one["hash"], one["label"], one["config"], {}, parent)
    store.log_files(run, {"partition.png": drawn.getvalue()})
    store.log_rows(run, history(50, 60))
    store.close_cell(run, "finished", {"seconds_per_round": 0.25, "theta_sha256": "ab" * 32})


def test_what_is_missing_comes_first_by_name_and_text_is_escaped(store: Tracker) -> None:
    some_runs(store)
    text = page(collect("<b>sweep"), ["last10_test_accuracy", "test_accuracy"])
    assert "<b>sweep" not in text
    assert "&lt;b&gt;sweep" in text
    assert "8 cells: 6 finished, 1 diverged, 1 missing" in text
    missing = text[text.index('id="missing"') : text.index("<h2>Results")]
    assert re.findall(r"<li>(\w+: \S+)", missing) == ["diverged: fedsam-0.1-0.1-0:", "missing: fedsam-0.1-0.1-1"]
    assert ": why (" in missing
    # seeds 0 and 1 of fedavg at α = 0.5: means of (60, 70) and (61, 71), so 65.5 ± 0.71; the last rounds: 70.5
    assert "<u>65.50 ± 0.71</u>" in text
    assert "<u>70.50 ± 0.71</u>" in text
    assert "- (1 diverged, 1 missing)" in text
    assert text.count('alt="dirichlet') == 2, "learning curves, a picture per setting"
    assert "No run yet that holds a picture of its partition." in text
    # fedsam - fedavg at α = 0.5: 2 for both seeds, so the p of two sign flips, 0.5; at α = 0.1 no pair
    assert "<td>+2.00</td><td>-</td><td>too few seeds</td><td>0.500</td><td>0.500</td>" in text
    assert text.count('alt="Difference to fedavg: dirichlet α=0.5') == 1
    assert "mean rank" not in text, "of one setting whole"


def test_pictures_settings_environment(store: Tracker) -> None:
    with_picture(store)
    text = page(collect("drawn"), ["test_accuracy"])
    assert 'id="missing"' not in text
    assert "what it is about" in text
    assert f'<td>torch</td><td class="mono">{version("torch")}</td><td>1</td>' in text
    assert "<td>commit of fedray</td>" in text
    assert '<td class="mono">partition.alpha</td><td class="mono">0.5</td>' in text
    assert '<td>0.25</td><td class="mono">abababababababab</td>' in text
    assert text.count("data:image/png;base64,") == 2


def test_without_any_run(store: Tracker) -> None:
    store.open_sweep("planned", "", [cell(FEDAVG, 0.5, 0)])
    text = page(collect("planned"), ["last10_test_accuracy"])
    assert "No finished run to draw." in text
    assert "no run yet" in text


def test_in_a_browser(store: Tracker, tmp_path: Path) -> None:
    """Nothing on the console, where a request to the network would be: the page's policy refuses it. Pictures load.

    Scripts are forbidden too; a copy without the policy measures the pictures.
    """
    with_picture(store)
    main("drawn", "test_accuracy", out=tmp_path / "page.html")
    dom, console = opened((tmp_path / "page.html").as_uri(), tmp_path / "profile")
    assert console == []
    assert dom.count("<img") == 2
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    (tmp_path / "fetching.html").write_text(text.replace("<p>what", "<img src='https://example.org/a.png'><p>what"))
    _, console = opened((tmp_path / "fetching.html").as_uri(), tmp_path / "profile")
    assert "Content Security Policy" in console[0], "this test can fail"
    measuring = "<script>document.title = [...document.images].map(i => i.naturalWidth).join()</script></body>"
    policy = re.search(r"<meta http-equiv.*", text)
    assert policy is not None
    (tmp_path / "measured.html").write_text(text.replace(policy[0], "").replace("</body>", measuring))
    dom, _ = opened((tmp_path / "measured.html").as_uri(), tmp_path / "profile")
    title = re.search("<title>(.*)</title>", dom)
    assert title is not None
    assert [int(width) > 200 for width in title[1].split(",")] == [True, True]
    picture = matplotlib.image.imread(
        pictured((tmp_path / "page.html").as_uri(), tmp_path / "profile", tmp_path / "page.png")
    )
    assert picture.shape[:2] == (1600, 1200)
    assert np.std(picture[:, :, :3]) > 0.05, "a blank page"


def test_refusals(store: Tracker, tmp_path: Path) -> None:
    with_picture(store)
    with pytest.raises(UserError, match="--metric: unknown name 'acuracy'"):
        main("drawn", "acuracy", out=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
