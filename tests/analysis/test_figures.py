"""Figures, read back from their axes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from PIL import Image

from fedray.analysis import figures
from fedray.analysis.data.axes import find_key, label_cells, title_axes
from fedray.analysis.data.collect import collect
from fedray.analysis.figures import main
from fedray.analysis.plots.clients import draw_fairness
from fedray.analysis.plots.curves import draw_curves, explain_missing_zoom, find_zoom
from fedray.analysis.plots.sensitivity import draw_sensitivity, list_varied
from fedray.analysis.plots.style import WIDE, WIDTH, choose_styles, is_logarithmic, save
from fedray.cells.looks import shade
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, rows, sheet, ticks, write, write_run
from tests.conftest import Call, each

KEYS = {"rho": "algorithm.rho", "ρ": "algorithm.rho", "alpha": "partition.alpha", "seed": "seed"}
AVERAGED = "mean of the tests in the last fifth of the rounds, at most 10"
"""A note's end, for cells that do not say how many rounds they have."""


def test_curves_are_means_with_a_band(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fedavg: seeds 10, 20 and 30, 40: means 20 and 30; the band is ± |30-10|/sqrt 2 = 14.14. ρ=0.1 has one finished
    seed: its own curve and no band; the diverged one is not drawn, but named. Each setting is a panel."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0), cell(SMALL, 0.5, 1), cell(SMALL, 0.1, 0)]
    curve = history(10, 20), history(30, 40), history(50, 60)
    write(store, cells, [*curve, ("diverged", 99), history(7, 8)])
    (figure,) = draw_curves(collect("sweep")).values()
    axes, other = figure.axes
    assert [panel.get_title() for panel in figure.axes] == ["dirichlet α=0.5", "dirichlet α=0.1"]
    drawn = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in axes.lines}
    assert drawn == {"fedavg": [[1, 20], [2, 30]], "fedsam": [[1, 50], [2, 60]]}
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().extents == pytest.approx([1, 20 - 200**0.5, 2, 30 + 200**0.5])
    assert [line.get_color() for line in other.lines] == [axes.lines[1].get_color()], "a method looks alike everywhere"
    assert figure.get_figwidth() == WIDE
    assert figure.get_label() == "band: ± standard deviation over 1 to 2 seeds; y axes differ"
    main("sweep", "curves", out=tmp_path / "figures")
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["sweep-curves.pdf", "sweep-curves.png"]
    assert (tmp_path / "figures" / names[0]).read_bytes().startswith(b"%PDF")
    assert (tmp_path / "figures" / names[1]).read_bytes().startswith(b"\x89PNG")
    assert "not drawn, diverged: fedsam-0.1-0.5-1" in capsys.readouterr().out


def test_every_kind_is_described_and_drawn_in_a_test() -> None:
    """The command's help names the kinds; the module's docstring says what each shows."""
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    assert [kind for kind in figures.KINDS if f"- {kind}:" not in str(figures.__doc__)] == [], "add it to the docstring"
    assert [kind for kind in figures.KINDS if f'"{kind}"' not in sources] == [], "draw it by `main`"


def test_stopped_runs_have_their_curves(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seeds that were stopped in rounds 3 and 2: their mean ends in round 2."""
    cells = [cell(FEDAVG, 0.5, seed) for seed in (0, 1)]
    write(store, cells, [("stopped", history(10, 20, 70)), ("stopped", history(30, 70))])
    (figure,) = draw_curves(collect("sweep")).values()
    assert np.asarray(figure.axes[0].lines[0].get_xydata()).tolist() == [[1, 20], [2, 45]]
    assert figure.get_label() == "band: ± standard deviation over 2 seeds; a line ends with the first of its seeds"
    main("sweep", out=tmp_path)
    assert "not drawn" not in capsys.readouterr().out
    write(store, cells, [("stopped", history(*range(9)))] * 2, name="long")
    write(store, [cell(FEDAVG, alpha, 0) for alpha in (0.1, 0.2)], [history(*range(k)) for k in (9, 12)], name="apart")
    for name, panels in (("long", 1), ("apart", 2)):
        (figure,) = draw_curves(collect(name)).values()
        assert (len(figure.axes), "shaded" in figure.get_label()) == (panels, False), "tables average none, or others"
        assert explain_missing_zoom(collect(name)).startswith("found settings that end in other rounds")


def test_many_methods_also_have_a_panel_each(store: Tracker, tmp_path: Path) -> None:
    """Seven, not six, one setting; what the panels show is tested where the page draws them."""
    cells = [cell({"name": "fedsam", "rho": n / 10}, 0.5, 0) for n in range(1, 8)]
    write(store, cells, [50 + n for n in range(7)])
    write(store, cells[:6], [50 + n for n in range(6)], name="six")
    for name in ("sweep", "six"):
        main(name, "curves", out=tmp_path)
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"sweep-curves.png", "sweep-multiples.png", "six-curves.png"}
    main("sweep", "curves", metric="test_accuracy,test_loss", out=tmp_path / "two")
    drawn = {path.name for path in tmp_path.glob("two/*multiples*.png")}
    assert drawn == {"sweep-multiples-test_accuracy.png", "sweep-multiples-test_loss.png"}


def test_sensitivity_over_a_hyper_parameter(store: Tracker) -> None:
    """ρ = 0.1: 60 and 62, mean 61 ± 1.41; ρ = 0.5: 70. fedavg has no ρ, but 49 and 51: a level line, 50 ± 1.41."""
    cells = [cell(SMALL, 0.5, 0), cell(SMALL, 0.5, 1), cell(LARGE, 0.5, 0), cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1)]
    write(store, cells, (60, 62, 70, 49, 51))
    (figure,) = draw_sensitivity(collect("sweep"), "algorithm.rho").values()
    (axes,) = figure.axes
    assert figure.get_label() == f"error bars and bands: ± standard deviation over 1 to 2 seeds; {AVERAGED}"
    (band,) = axes.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((50 - 2**0.5, 50 + 2**0.5))
    assert ticks(axes) == {0.1: "0.1", 0.5: "0.5"}
    (container,) = axes.containers
    _, _, (whiskers,) = container.lines
    line = next(one for one in axes.lines if one.get_label() == "fedsam")
    assert np.asarray(line.get_xydata()).tolist() == [[0.1, 61], [0.5, 70]]
    assert whiskers.get_segments()[0][:, 1] == pytest.approx([61 - 2**0.5, 61 + 2**0.5])
    (level,) = [one for one in axes.lines if one.get_label() == "fedavg"]
    assert np.asarray(level.get_ydata()).tolist() == [50, 50]


@pytest.mark.parametrize(("given", "key"), KEYS.items())
def test_a_key_by_its_last_part(given: str, key: str, store: Tracker) -> None:
    """fedtoga's α has one value, so `alpha` is the partition's; with a second value it may be either."""
    toga = {"name": "fedtoga", "rho": 0.1, "alpha": 0.1}
    write(store, [cell(one, alpha, 0) for one in (SMALL, LARGE, toga) for alpha in (0.1, 0.5)], range(60, 66))
    found = collect("sweep").cells
    assert find_key(given, found) == key
    assert find_key(given, found.assign(**{"algorithm.alpha": range(6)})) == ("alpha" if given == "alpha" else key)


def test_one_key_at_a_time(store: Tracker) -> None:
    """A star: ρ = 0.1, 0.5 at β = 1, and β = 2 at ρ = 0.1. Neither panel draws the lone point of the other arm."""
    base = {"name": "mofedsam", "rho": 0.1, "beta": 1}
    write(store, [cell(a, 0.5, 0) for a in (base, base | {"rho": 0.5}, base | {"beta": 2})], (60, 70, 80))
    sweep = collect("sweep")
    assert list_varied(sweep, 2) == ["algorithm.rho", "algorithm.beta"]
    assert list_varied(sweep) == [], "two values are not drawn unless asked for"
    blocks = [cell(FEDAVG, 0.5, k) | {"tuned": {"values": {"training.lr": lr}}} for k, lr in enumerate((0.1, 0.2, 0.3))]
    for one in blocks:
        one["config"]["training"] = {"lr": one["tuned"]["values"]["training.lr"]}
    write(store, blocks, (60, 70, 80), name="tuned")
    assert list_varied(collect("tuned")) == [], "a value that each block chose varies with its seed and data"
    for key, points in (("algorithm.rho", [[0.1, 60], [0.5, 70]]), ("algorithm.beta", [[1, 60], [2, 80]])):
        (figure,) = draw_sensitivity(sweep, key).values()
        (line,) = [one for one in figure.axes[0].lines if not str(one.get_label()).startswith("_")]
        assert np.asarray(line.get_xydata()).tolist() == points


def test_a_method_whose_settings_lack_the_number_is_named(store: Tracker) -> None:
    """fedsam has been run with a split that has no α, so it has neither a line nor a panel."""
    cells = [cell(FEDAVG, alpha, 0) for alpha in (0.1, 0.5)] + [cell(SMALL, 0.5, 0)]
    cells[2]["config"]["partition"] = {"name": "iid"}
    write(store, cells, (60, 70, 80))
    (figure,) = draw_sensitivity(collect("sweep"), "partition.alpha").values()
    assert figure.get_label().endswith("; not drawn, in settings without a line: fedsam")


def test_runs_of_a_line_without_the_number_are_told(store: Tracker) -> None:
    cells = [cell(FEDAVG, 0.5, 0) | {"hash": f"c{clip}"} for clip in (None, 1, 10)]
    for one, clip in zip(cells, (None, 1, 10), strict=True):
        one["config"]["training"] = {"clip_norm": clip}
    write(store, cells, (60, 70, 80))
    (figure,) = draw_sensitivity(collect("sweep"), "training.clip_norm").values()
    assert "; not drawn, runs without clip_norm: fedavg" in figure.get_label()
    write(store, cells[:2], (), name="two")
    with pytest.raises(UserError, match="clip_norm has one value in this sweep, not counting none; a key that varies"):
        draw_sensitivity(collect("two"), "training.clip_norm")


def test_two_metrics_with_client_deviation(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two seeds: local accuracy 10 and 20, over clients ± 3 and ± 5: a line at 15 ± 4; not ± 7.07 as over the seeds.
    The test accuracy's own deviation over clients was not logged, so it has no band; fedsam has not been probed."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1), cell(SMALL, 0.5, 0)]
    logged = [rows(local=(10, 10), local_std=(3, 3)), rows(local=(20, 20), local_std=(5, 5)), history(7, 7)]
    write(store, cells, logged)
    (figure,) = draw_curves(collect("sweep"), "local", band="clients").values()
    (band,) = figure.axes[0].collections
    assert band.get_paths()[0].get_extents().extents == pytest.approx([1, 11, 2, 19])
    (both,) = draw_curves(collect("sweep"), "test_accuracy+local", band="clients").values()
    labels = ["fedavg: test_accuracy", "fedavg: local", "fedsam: test_accuracy"]
    assert [line.get_label() for line in both.axes[0].lines] == labels
    assert [round(one.get_paths()[0].get_extents().height, 6) for one in both.axes[0].collections] == [1, 8]
    others = "others: ± standard deviation over 1 to 2 seeds"
    assert both.get_label() == f"band: ± standard deviation over clients for local; {others}"
    (apart,) = draw_curves(collect("sweep"), "test_accuracy,local").values()
    assert [[line.get_label() for line in area.lines] for area in apart.axes] == [["fedavg", "fedsam"], ["fedavg"]]
    assert [area.get_ylabel() for area in apart.axes] == ["test accuracy in %", "local"]
    left, right = apart.axes
    assert left.get_position().y0 == pytest.approx(right.get_position().y0)
    said = r"^--band: found clients; no run logs a deviation over clients of test_loss; .* one: local$"
    with pytest.raises(UserError, match=said):
        draw_curves(collect("sweep"), "test_loss", band="clients")
    main("sweep", "curves", metric="local", out=tmp_path)
    assert "not drawn, without local: fedsam-0.1-0.5-0" in capsys.readouterr().out


def test_accuracy_by_what_was_sent(store: Tracker, tmp_path: Path, call: Call) -> None:
    """Two seeds with cohorts of other sizes: at 1 and 3 MB after round 1, 2 and 6 after round 2, so at 2 and 4."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1)]
    logged = [rows(test_accuracy=(10, 20), megabytes_sent=(1, 2)), rows(test_accuracy=(30, 40), megabytes_sent=(3, 6))]
    write(store, cells, logged)
    (figure,) = draw_curves(collect("sweep"), x="megabytes_sent").values()
    (axes,) = figure.axes
    assert axes.get_xlabel() == "megabytes sent to and by clients"
    assert np.asarray(axes.lines[0].get_xydata()).tolist() == [[2, 20], [4, 30]]
    main("sweep", "curves", x="megabytes_sent", out=tmp_path)
    assert [path.suffix for path in sorted(tmp_path.glob("sweep-by-megabytes_sent*"))] == [".pdf", ".png"]
    with pytest.raises(UserError, match="--x"):
        draw_curves(collect("sweep"), x="kilometres")
    timed = [row | {"seconds_per_round": 2.0} for row in history(10, 20)]
    timed[1]["personal_accuracy"] = 50
    write(store, [cell(FEDAVG, 0.1, 0)], [timed], name="timed")
    for metric in ("test_accuracy,personal_accuracy", "personal_accuracy,test_accuracy"):
        (figure,) = draw_curves(collect("timed"), metric, x="seconds").values()
        lines = [np.asarray(axes.lines[0].get_xydata()).tolist() for axes in figure.axes]
        assert sorted(lines) == [[[2, 10], [4, 20]], [[4, 50]]]
    write(store, [cell(FEDAVG, 0.1, k) for k in (0, 1)], [timed, ("stopped", history(10, 20))], name="both")
    (figure,) = draw_curves(collect("both"), x="seconds").values()
    assert np.asarray(figure.axes[0].lines[0].get_xdata()).tolist() == [2, 4], "a stopped run has no seconds"
    out = call("figures", "both", "--kind", "curves", "--x", "seconds", "--out", str(tmp_path / "both")).done
    assert out.endswith("not drawn, stopped: fedavg-0.1-1\n")


def test_a_zoom_on_the_rounds_that_tables_average(store: Tracker) -> None:
    """The last 12 of 60 evaluated rounds; the lines alone, on a scale of their own; ticks are even."""
    cells = [cell(FEDAVG, alpha, seed) for alpha in (0.5, 0.1) for seed in (0, 1)]
    climbing = [min(t, 50) * 1.5 + t / 10 for t in range(60)]
    write(store, cells, [history(*(a + k for a in climbing)) for k in range(len(cells))])
    (figure,) = draw_curves(collect("sweep")).values()
    main_, zoom, other, other_zoom = figure.axes
    assert [axes.get_title() for axes in (main_, other)] == ["dirichlet α=0.5", "dirichlet α=0.1"]
    assert [patch.get_x() for patch in main_.patches] == [50.5], "tables average rounds 51 to 60"
    (line,) = zoom.lines
    assert np.asarray(line.get_xdata()).tolist() == list(range(49, 61))
    ((bands, whole),) = [[area.collections[0].get_paths()[0].get_extents() for area in (zoom, main_)]]
    assert (bands.x0, whole.x0) == (49, 1), "two seeds apart by 1 have a band in both"
    assert zoom.get_ylim()[0] > 70 > main_.get_ylim()[0]
    assert ([*ticks(zoom)], [*ticks(main_)]) == ([50, 55, 60], [20, 40, 60])
    assert ticks(other) == ticks(main_)
    assert main_.get_shared_x_axes().joined(main_, other)
    assert main_.get_ylim() == other.get_ylim()
    assert zoom.get_ylim() == other_zoom.get_ylim(), "they share it, as it leaves no half empty"
    assert "axes" not in figure.get_label()
    assert other_zoom.yaxis.get_tick_params()["labelleft"] is False
    assert (main_.get_ylabel(), other.get_ylabel()) == ("test accuracy in %", "")
    assert (main_.get_xlabel(), zoom.get_xlabel()) == ("", "round")


def test_a_method_far_below_the_others_does_not_flatten_their_zoom(store: Tracker) -> None:
    """Two at 91 and 92, one at 40, in all rounds: the zoom has 1 and a twentieth of it above and below, no 52."""
    write(store, [cell(one, 0.5, 0) for one in (FEDAVG, SMALL, LARGE)], [history(*[v] * 9) for v in (40, 91, 92)])
    (figure,) = draw_curves(collect("sweep")).values()
    main_, zoom = figure.axes
    assert zoom.get_ylim() == pytest.approx((90.95, 92.05))
    assert main_.get_ylim()[0] < 40
    assert figure.get_label().endswith("; outside of the lower panel: fedavg")


@pytest.mark.parametrize(("rounds", "start"), [(8, None), (9, 7), (15, 13), (30, 25), (40, 33), (100, 81)])
def test_where_a_zoom_begins(rounds: int, start: int | None) -> None:
    """None for fewer than nine evaluated rounds; else the last fifth of the rounds, three at least."""
    assert find_zoom(list(range(1, rounds + 1))) == start


@each(
    (9, "", ""),
    (8, "", "found 8 evaluated rounds; 9 are required"),
    (9, "--metric test_accuracy,test_loss", "found test_accuracy,test_loss, with panels each; one metric"),
    *((9, f"--x {x}", f"found curves by {x}, which end at different values") for x in ("test_loss", "seconds")),
)
def test_why_there_is_no_zoom(rounds: int, options: str, said: str, store: Tracker, tmp_path: Path, call: Call) -> None:
    write(store, [cell(FEDAVG, 0.5, 0)], [[row | {"seconds_per_round": 1.0} for row in history(*range(rounds))]])
    out = call("figures", "sweep", "--kind", "curves", "--out", str(tmp_path), *options.split()).done
    assert "curves begin" not in out
    assert ("no zoom on the last rounds" in out) == bool(said)
    assert said in out


def test_figures_say_that_curves_begin_late(store: Tracker, tmp_path: Path, call: Call) -> None:
    one = cell(FEDAVG, 0.5, 0)
    one["config"]["training"] = {"rounds": 20}
    write(store, [one], [[row | {"round": row["round"] + 9} for row in history(*range(60, 71))]])
    out = call("figures", "sweep", "--kind", "curves", "--out", str(tmp_path)).done
    assert out.endswith("curves begin in round 10, the first that is tested; evaluation.every: 1 tests every round\n")


def test_what_a_caption_needs_is_printed_and_kept_in_the_files(store: Tracker, tmp_path: Path, call: Call) -> None:
    """Once for the two files of a picture, whose canvas has none of it."""
    write(store, [cell(FEDAVG, 0.5, seed) for seed in (0, 1)], [history(60, 70)] * 2)
    png, pdf, said, _ = call("figures", "sweep", "--kind", "curves", "--out", str(tmp_path)).done.splitlines()
    needed = "band: ± standard deviation over 2 seeds"
    assert said == f"  for its caption: {needed}"
    with Image.open(png) as image:
        assert image.info["Description"] == needed
    assert b"/Subject " in Path(pdf).read_bytes()
    (figure,) = draw_curves(collect("sweep")).values()
    assert not any("seeds" in text.get_text() for text in figure.findobj(Text))
    files = save(dict.fromkeys(("FedAvg", "FedAvg+", "FedAvg!"), figure), tmp_path, "s")
    assert [path.stem for path in files][::2] == ["s-FedAvg", "s-FedAvg-", "s-FedAvg--2"], "two names, not one file"


def test_other_data_are_another_figure(store: Tracker) -> None:
    """90 % on one data set and 40 % on another are drawn on separate axes; a metric of one has one figure."""
    cells = [cell(FEDAVG, 0.5, 0) for _ in range(2)]
    for one, name in zip(cells, ("digits", "mnist"), strict=True):
        one["hash"] = one["label"] = name
        one["config"]["data"] = {"name": name}
    parent, clients = store.open_sweep(sheet("sweep", cells)), {"client": [0], "samples": [5], "accuracy": [60.0]}
    write_run(store, cells[0], rows(personal_accuracy=(60,)), parent=parent, tables={"clients": clients})
    write_run(store, cells[1], history(70), parent=parent)
    figures = draw_curves(sweep := collect("sweep"))
    assert list(figures) == ["digits", "mnist"]
    assert [figure.get_figwidth() for figure in figures.values()] == [WIDTH, WIDTH]
    assert [*draw_curves(sweep, "personal_accuracy")] == [*draw_fairness(sweep)] == ["digits"]
    assert [*draw_curves(sweep, "personal_accuracy,test_accuracy")] == ["digits", "mnist"]
    assert explain_missing_zoom(sweep, "personal_accuracy") == "found 1 evaluated round; 9 are required"


def test_a_caption_counts_the_seeds_of_its_own_figure(store: Tracker) -> None:
    """Three seeds of each method on digits, one on mnist."""
    parts = [("digits", seed) for seed in range(3)] + [("mnist", 0)]
    cells = [cell(a, 0.5, seed) | {"_": data} for data, seed in parts for a in (FEDAVG, SMALL, LARGE)]
    for one in cells:
        one["config"]["data"] = {"name": one.pop("_")}
        one["hash"] = one["label"] = f"{one['label']} {one['config']['data']['name']}"
    write(store, cells, [50 + k for k in range(12)])
    labels = [str(figure.get_label()) for figure in draw_sensitivity(collect("sweep"), "algorithm.rho").values()]
    many = "error bars and bands: ± standard deviation over 3 seeds that methods share"
    assert [label.partition(";")[0] for label in labels] == [many, "one seed"]


def test_error_bars_stand_at_their_points(store: Tracker) -> None:
    """Two methods at ρ = 0.05, 0.1, 0.5, which span a decade: log axis."""
    rhos = [0.05, 0.1, 0.5]
    methods = [{"name": name, "rho": rho} for name in ("fedsam", "fedtoga") for rho in rhos]
    write(store, [cell(method, 0.5, seed) for method in methods for seed in (0, 1)], range(60, 72))
    (figure,) = draw_sensitivity(collect("sweep"), "algorithm.rho").values()
    (axes,) = figure.axes
    assert (axes.get_xscale(), ticks(axes)) == ("log", {0.05: "0.05", 0.1: "0.1", 0.5: "0.5"})
    bars = "error bars: ± standard deviation over 2 seeds that methods share"
    assert figure.get_label() == f"{bars}; ρ on a logarithmic axis; {AVERAGED}"
    lines = [line for line in axes.lines if str(line.get_label()).startswith("fed")]
    assert [np.asarray(line.get_xdata()).tolist() for line in lines] == [rhos] * 2
    bottom, top = axes.get_ylim()
    assert bottom < 60 < 71 < top


@each(((0.05, 0.1, 0.5), True), ((0.1, 0.6), False), ((1, 2, 3, 4), False), ((0.0, 0.1, 1.0), False), ((-1, 10), False))
def test_which_numbers_want_a_logarithmic_axis(values: tuple[float, ...], logarithmic: bool) -> None:
    """Positive values that span a decade."""
    assert is_logarithmic(pd.Series(values, dtype=float)) == logarithmic


def test_smoothing(store: Tracker, tmp_path: Path) -> None:
    """Means of up to two evaluations: 10, (10+20)/2, (20+60)/2."""
    write(store, [cell(FEDAVG, 0.5, 0)], [history(10, 20, 60)])
    (figure,) = draw_curves(collect("sweep"), smooth=2).values()
    assert np.asarray(figure.axes[0].lines[0].get_ydata()).tolist() == [10, 15, 40]
    main("sweep", "curves", smooth=2, out=tmp_path / "f")
    assert {path.name for path in tmp_path.glob("f/*")} == {"sweep-curves-smooth-2.png", "sweep-curves-smooth-2.pdf"}


@pytest.mark.parametrize("epochs", ["", "_e1"])
def test_the_deviation_of_personal_accuracy(epochs: str, store: Tracker) -> None:
    """Its name is `personal_std`: 80 ± 5 over the clients of one seed."""
    logged = {f"personal_accuracy{epochs}": (80, 80), f"personal_std{epochs}": (5, 5)}
    write(store, [cell(FEDAVG, 0.5, 0)], [rows(**logged)])
    (figure,) = draw_curves(collect("sweep"), f"personal_accuracy{epochs}", band="clients").values()
    (band,) = figure.axes[0].collections
    assert band.get_paths()[0].get_extents().extents == pytest.approx([1, 75, 2, 85])


def test_a_colour_is_a_method_and_its_shades_and_dashes_are_values() -> None:
    """40 lines differ in grey; ten methods of eight values, and a hundred methods of one, in some way."""
    some = choose_styles([("fedavg", "fedavg"), ("fedsam ρ=1", "fedsam"), ("fedsam ρ=2", "fedsam"), ("x ρ=1", "x")])
    avg, first, second, other = some.values()
    assert first["gid"] == second["gid"] not in (avg["color"], other["color"])
    assert (avg["color"], first["color"], second["color"]) == ("#0072b2", shade("#d55e00", 0), shade("#d55e00", 1))
    assert first["linestyle"] == other["linestyle"] != second["linestyle"]
    assert [style.get("linewidth", 1) > 1 for style in some.values()] == [True, False, False, True], "one line is broad"
    alone = choose_styles([("x 1", "x"), ("x 2", "x")])
    assert len({style["color"] for style in alone.values()}) == 2, "no other method"
    assert "linewidth" not in choose_styles((str(m), str(m)) for m in range(4))["0"], "four thin lines"
    for values, methods, grey in ((1, 40, 40), (10, 4, 40), (8, 10, 0), (1, 100, 0)):
        lines = choose_styles((f"{m} {v}", str(m)) for m in range(methods) for v in range(values))
        assert len({str(style) for style in lines.values()}) == values * methods
        assert len({(str(style["linestyle"]), style["marker"]) for style in lines.values()}) >= grey


def test_an_axis_says_whose_letter_it_is(store: Tracker) -> None:
    """FedTOGA has an α with one value; the axis is the partition's. Metrics that average other rounds are named."""
    toga = {"name": "fedtoga", "rho": 0.1, "alpha": 0.1}
    cells = [cell(one, alpha, 0) for one in (SMALL, toga) for alpha in (0.1, 0.5)]
    for one in cells:
        one["config"]["training"] = {"rounds": 20}
    write(store, cells, [history(60, 70)] * 4)
    sweep = collect("sweep")
    (figure,) = draw_sensitivity(sweep, "partition.alpha").values()
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("α (partition)", "test accuracy in %")
    assert figure.get_label() == "one seed; mean of rounds 17 to 20"
    (figure,) = draw_sensitivity(sweep, "partition.alpha", "last10_test_accuracy+final_test_accuracy").values()
    assert figure.get_label() == "one seed; last10_test_accuracy: mean of rounds 17 to 20"
    for alone, title in ((SMALL, "α"), (toga, "α (partition)")):
        own = sweep.cells[sweep.cells["algorithm.name"] == alone["name"]].dropna(axis=1, how="all")
        assert title_axes(["partition.alpha"], own) == [title]
        assert label_cells(own, "partition.alpha,seed").iloc[0] == "α=0.1 seed=0", "labels name what they tell apart"
