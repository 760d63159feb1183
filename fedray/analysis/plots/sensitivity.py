"""A table's metric against a key: a hyper-parameter, the heterogeneity or the participation."""

from dataclasses import replace

import pandas as pd
from matplotlib.transforms import ScaledTranslation

from fedray.analysis.data.axes import (
    WITH_CURVE,
    find_symbol,
    label_finished,
    list_dotted,
    list_names,
    list_varying_settings,
    refuse_one_value,
    title_axes,
    unknown_key,
)
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import NEVER, describe_omitted, describe_target, make_title, read_values
from fedray.analysis.plots.style import (
    Figures,
    choose_styles,
    describe_seeds,
    iter_methods,
    level_panels,
    make_panels,
    set_value_ticks,
    split_figures,
    styled,
    to_numbers,
    with_legend,
)
from fedray.cells.metric import DEFAULT
from fedray.common.errors import UserError

DODGE, WIDEST = 1.5, 7.0
"""Points between neighbouring methods at a value, and between the outermost: at most 2 % of a column to each side. The
caps of error bars are as narrow, so that neighbours do not merge."""


@styled
def draw_sensitivity(sweep: SweepTable, x: str, metric: str = DEFAULT) -> Figures:
    """Draw the metric against a key whose numbers are the x axis, with a tick at each of them.

    A method without such an option (fedavg has no ρ) is a horizontal line, unless options of its own vary in the panel.
    A method with only one value of it, since another key varies there, is left out, too; the note names it, with the
    reason, if it is in no panel.

    x: the dotted key; or METHOD.OPTION and 1-METHOD.OPTION with commas, options of several methods that mean the same,
    which alone are drawn. metric: as in tables; several joined by `+` are drawn in the same panels. Raises UserError if
    a key is unknown or not a number, or never varies by itself.
    """
    every = label_finished(sweep, statuses=WITH_CURVE)
    looks, methods = every["_row"], every["algorithm.name"]
    whole = sweep  # the metric may name a method that is not drawn
    if x in list_dotted(sweep.cells):
        numbers, title, without = _read_numbers(sweep.cells, x), title_axes([x], sweep.cells)[0], [x]
    else:
        numbers, title, without = _join_options(sweep.cells, x)
        sweep = replace(sweep, cells=sweep.cells[numbers.notna()])
    refuse_one_value("--x", x, numbers)
    rows = label_finished(sweep, without, WITH_CURVE).assign(_x=numbers, _look=looks)
    names, many = metric.split("+"), "+" in metric
    several = [rows.assign(_row=rows["_row"] + f": {one}" * many, _value=read_values(whole, one)) for one in names]
    cells = pd.concat(several, ignore_index=True)
    cells = cells[cells["_value"].notna() & (cells["_value"] != NEVER)]
    count = cells.groupby(["_column", "_row"])["_x"].transform("nunique")
    if not (count > 1).any():
        raise UserError(f"--x: no finished runs differ by {x} alone")
    own = cells[cells["_x"].isna()].groupby(["_column", "algorithm.name"])["_row"].transform("nunique")
    methods_of = {
        f"with one value of {title}": cells.loc[cells["_x"].notna(), "algorithm.name"],
        f"without {title} and with several rows": cells.loc[own.reindex(cells.index) > 1, "algorithm.name"],
        "in settings without a line": cells["algorithm.name"],
    }
    cells = cells[(count != 1) & ~(own.reindex(cells.index) > 1)]
    cells = cells[cells["_column"].isin(cells.loc[cells["_x"].notna(), "_column"])]
    absent, named, shown = "", {*cells["algorithm.name"]}, list_names(sweep.cells)
    for why, of in methods_of.items():
        if gone := [name for name in dict.fromkeys(of) if name not in named]:
            absent += f"; not drawn, {why}: {', '.join(shown.get(name, name) for name in gone)}"
            named |= {*gone}
    numbered = cells.groupby(["_column", "_row"])["_x"].transform("count") > 0
    if lost := ", ".join(dict.fromkeys(cells.loc[cells["_x"].isna() & numbered, "_row"])):
        absent += f"; not drawn, runs without {title}: {lost}"
    if many:  # no curves have these lines
        looks, methods = cells["_row"], cells["algorithm.name"]
        cells["_look"] = looks
    styles = choose_styles(zip(looks, methods.astype(str), strict=True))
    of_method = cells.groupby("_row")["_look"].first().map(styles)
    if of_method.map(lambda style: style["gid"]).is_unique:  # no shades: each method has one line
        of_method = of_method.map(lambda style: style | {"color": style["gid"]})
    dodged = list(dict.fromkeys(cells.loc[cells["_x"].notna(), "_row"]))
    gap = min(DODGE, WIDEST / len(dodged))
    figures = {}
    for name, settings in split_figures(cells):
        what = make_title(names[0], sweep.cells)
        what = what.partition(" (")[0] if many else what
        drawn = make_panels([setting for setting, _ in settings], title, what, level=False)
        for setting, panel in settings:
            area, reach = drawn.main[setting], list[float]()
            for method, group in iter_methods(cells, panel):
                style = of_method[method]
                at = group.dropna(subset="_x").groupby("_x")["_value"]
                if at.ngroups:
                    spread = at.std()  # NaN of one seed, which has no bar
                    reach += [*(at.mean() - spread.fillna(0)), *(at.mean() + spread.fillna(0))]
                    points = gap * (dodged.index(method) - (len(dodged) - 1) / 2)
                    aside = area.transData + ScaledTranslation(points / 72, 0, drawn.figure.dpi_scale_trans)
                    bar = {"fmt": "none", "ecolor": style["color"], "capsize": gap, "elinewidth": 0.6}
                    area.errorbar(at.mean().index, at.mean(), yerr=spread, transform=aside, **bar)
                    area.plot(at.mean().index, at.mean(), label=method, transform=aside, **style)
                elif len(group):
                    mean, half = group["_value"].mean(), group["_value"].std() if len(group) > 1 else 0.0
                    reach += [mean - half, mean + half]
                    area.axhspan(mean - half, mean + half, color=style["color"], alpha=0.12, linewidth=0)
                    area.axhline(mean, label=method, **{**style, "marker": ""})
            margin = 0.06 * (max(reach) - min(reach)) or 1.0
            area.set_ylim(min(reach) - margin, max(reach) + margin)  # matplotlib's own would count the dodging as data
        set_value_ticks(first := next(iter(drawn.main.values())), cells["_x"].dropna())
        apart = "" if level_panels([*drawn.main.values()]) else "; y axes differ"
        here = cells[cells["_column"].isin(dict(settings))]
        seeds = here.groupby(["_column", "_row", "_x"], dropna=False)["seed"].nunique()
        bars = "error bars and bands" if here["_x"].isna().any() else "error bars"
        note = describe_seeds(seeds, bars, rows[rows["run_id"].isin(here["run_id"])])
        note += f"; {title} on a logarithmic axis" * (first.get_xscale() == "log")
        note += describe_omitted(names, sweep.cells) + apart + absent
        of_figure = zip(names, (found[found["_column"].isin(dict(settings))] for found in several), strict=True)
        told = dict.fromkeys(said for one, found in of_figure for said in describe_target(whole, one, found))
        drawn.figure.set_label("; ".join([note, *told]))
        figures[name] = with_legend(drawn.figure, *drawn.main.values())
    return figures


def _read_numbers(cells: pd.DataFrame, key: str) -> pd.Series:
    numbers = to_numbers(cells[key])
    if (numbers.isna() & cells[key].notna()).any():
        given = ", ".join(sorted(set(map(str, cells[key].dropna()))))
        raise UserError(f"--x: the values of {key} are not numbers: {given}")
    return numbers


def _join_options(cells: pd.DataFrame, x: str) -> tuple[pd.Series, str, list[str]]:
    """Return the numbers of options of several methods, the name of their axis, and the keys that it stands for.

    Among these are settings that a method's option decides: `1-mimelite.beta` has a learning rate for each β.
    """
    methods, numbers, titles = cells["algorithm.name"], pd.Series(float("nan"), cells.index), list[str]()
    keys, chosen = dict[str, None](), dict[str, None]()
    for word in map(str.strip, x.split(",")):
        name, _, option = word.removeprefix("1-").rpartition(".")
        key, of = f"algorithm.{option}", methods == name
        if key not in cells or not cells.loc[of, key].notna().any():
            columns = [str(one) for one in cells if str(one).startswith("algorithm.") and one != "algorithm.name"]
            given = {
                f"{method}.{one.partition('.')[2]}"
                for method, group in cells.groupby("algorithm.name")
                for one in columns
                if group[one].notna().any()
            }
            raise unknown_key("--x", word, cells, given)
        values = _read_numbers(cells[of], key)
        numbers[of] = 1 - values if word.startswith("1-") else values
        titles.append(f"{'1 - ' * word.startswith('1-')}{find_symbol(key, cells[of])} ({name})")
        keys[key], chosen[name] = None, None
    drawn = cells[methods.isin(chosen)]
    groups = drawn.groupby([methods[drawn.index], numbers[drawn.index].round(9)])
    decided = [key for key in list_varying_settings(drawn) if groups[key].nunique(dropna=False).max() == 1]
    return numbers.round(9), ", ".join(titles), [*keys, *decided]


def list_varied(sweep: SweepTable, fewest: int = 3) -> list[str]:
    """Return the dotted keys that `sensitivity` can draw: so many numbers, by which alone a method's runs differ."""
    cells = label_finished(sweep, statuses=WITH_CURVE)
    keys = [key for key in list_dotted(cells) if cells[key].nunique() >= fewest]
    keys = [key for key in keys if to_numbers(cells[key].dropna()).notna().all()]
    alike = {
        key: label_finished(sweep, [key], WITH_CURVE).assign(_x=cells[key]).groupby(["_column", "_row"]) for key in keys
    }
    return [key for key, groups in alike.items() if groups["_x"].nunique().max() >= fewest]
