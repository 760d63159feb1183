"""Addresses in MLflow's UI, and the view of a sweep's charts that it opens."""

import contextlib
import json
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from urllib.request import urlopen

from fedray.cells.cell import Cell, shorten_number
from fedray.cells.looks import Look, choose_looks
from fedray.cells.metric import LAST, describe_rounds, list_last_rounds
from fedray.cells.status import SUPERSEDED, Status
from fedray.common.location import is_server, locate_server, store_uri
from fedray.components.base import Component
from fedray.tracking import store

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from fedray.tracking.store import AnyRun

UI = "http://127.0.0.1:5000"
"""Default address of `fedray ui`."""
FIRST = ("test_accuracy", "personal_accuracy", "validation_accuracy", "test_loss")
"""Metrics whose charts are open in the view of a sweep."""
HEIGHT, WIDTH = 400, 220
"""Height of a chart, enough for the title of an axis, and width of the column of the sweep's number, in pixels."""
NONE = "none"
"""Value of a parameter that varies in the sweep and that a run's method does not have."""
PLAIN = ("clients", "training", "evaluation")
"""Sections of which no run lacks one, so that `NONE` is a value of their keys."""
SPLITS = 6
"""Maximum number of settings, columns of the table, that have charts and a view each."""
AXES, WORDS, MOST = 7, 30, 0.6
"""Of parallel coordinates: the number of parameters beside which MLflow writes names level, the number of words that it
draws on an axis, and the part of the runs that must have a parameter with more values than that."""
LARGEST = 20_000
"""Maximum number of characters in a tag of an experiment."""
TRAINING = "?workflowType=machine_learning"
"""Query of MLflow's view of an experiment for training; the other view is for language models."""


def admit(host: str, port: int) -> tuple[str, dict[str, str]]:
    """Return the name under which a browser finds a server, and variables with which MLflow answers under it.

    MLflow refuses requests to a host that it does not know, and writes of a page from there: 403.
    """
    if host in ("127.0.0.1", "::1", "localhost"):  # named, or MLflow advises to bind to all addresses of the machine
        places = [f"http://{name}:{port}" for name in ("127.0.0.1", "[::1]", "localhost")]
        return host, {"MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(places)}
    from mlflow.server.security_utils import get_default_allowed_hosts  # here: it takes a second to import

    names = [host]
    if host in ("0.0.0.0", "::"):  # noqa: S104, every address of this machine
        names = [socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1"]
        with contextlib.suppress(OSError):  # a machine that does not know its own name
            names += [str(found[4][0]) for found in socket.getaddrinfo(names[0], port)]
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(("192.0.2.1", port))  # sends nothing: it only chooses the address that others see
            names.append(way.getsockname()[0])
    places = [f"{f'[{name}]' if ':' in name else name}:{port}" for name in dict.fromkeys(names)]
    return names[0], {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join([*get_default_allowed_hosts(), *places]),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{place}" for place in places),
    }


def make_address(run: str) -> str:
    """Return the address of a run in MLflow's UI if a server answers there, else the command that starts one."""
    uri = store_uri()
    server = locate_server(uri) if is_server(uri) else UI if _has_run(UI, run) else ""
    if not server:
        return "`fedray ui` shows it"
    _, experiment = store.open_store()
    return f"{server}/#/experiments/{experiment}/runs/{run}{TRAINING}"


def serves_store(server: str) -> bool:
    """Return True if MLflow answers at an address, and has the newest sweep of this store."""
    sweeps = store.find_sweeps(*store.open_reader())
    return bool(sweeps) and _has_run(server, next(iter(sweeps.values())).info.run_id)


def _has_run(server: str, run: str) -> bool:
    with contextlib.suppress(OSError), urlopen(f"{server}/api/2.0/mlflow/runs/get?run_id={run}", timeout=2):  # noqa: S310
        return True
    return False


def save_view(sweep: str = "") -> dict[str, str]:
    """Save views of the experiment's charts and table in MLflow; return what is where, without the server's address.

    Of a sweep, first a view of means over seeds if a setting has several; then one of all runs; then, if at most
    `SPLITS` settings vary, one of each, with its means or runs; last the page of the sweep's own run. A view has the
    curves of `FIRST`, and the sweep's number by what varies, in points, parallel coordinates and bars; other metrics
    and the summaries are folded. The table has the parameters that vary, the number and the status, the best first.
    Raises UserError if the store has no such sweep.
    """
    from mlflow.entities import Param

    from fedray.tracking.means import name_column, write_means

    client, experiment = store.open_store()
    known = store.find_sweeps(client, experiment)
    if sweep and sweep not in known:
        raise store.describe_unknown_sweep(sweep, known)
    cells, looks = _mark_listed(sweep, client, known[sweep]) if sweep else ({}, {})
    columns = [*dict.fromkeys(look.setting for look in looks.values())]
    columns = columns if 1 < len(columns) <= SPLITS else []
    filter = f"{store.select_listed(sweep)} AND " if sweep else ""
    filter += f"{store.IS_CELL} AND tags.`fedray.status` != '{SUPERSEDED}'"
    runs = list(store.search(client, experiment, filter))
    varying = _Varying([run.data.params for run in runs if run.data.params], has_words=bool(sweep))
    rounds = _describe_rounds(runs)
    views = {"all runs": _View(filter, runs)}
    if sweep:
        for run in runs:
            lacking = {key: value for key, value in varying.show(run).items() if key not in run.data.params}
            if lacking and run.data.params:
                client.log_batch(run.info.run_id, params=[Param(key, value) for key, value in lacking.items()])
        of_columns = looks if columns else {}
        write_means(client, known[sweep], cells, store.pick_best(runs), varying.show, FIRST, of_columns, varying.points)
        of_settings, noun = views["all runs"], "runs"
        names = {one.setting: looks[hash].setting for hash, one in cells.items()}
        if means := list(store.search(client, experiment, store.select_means(sweep))):
            logged = {name for run in means for name in run.data.metrics}
            columns = [one for one in columns if any(name.endswith(name_column(one)) for name in logged)]
            of_settings, noun = _View(store.select_means(sweep), means, columns or [""]), "means"
            views = {"means over seeds": of_settings} | views
            if len(means) < len(names):
                rounds += f"; {len(means)} of {len(names)} settings have a mean at {time.strftime('%H:%M')}"
        views |= {f"{noun} with {name}": view for name, view in _split(of_settings, varying.keys, names)}
    runs_page, addresses = f"/#/experiments/{experiment}/runs", dict[str, str]()
    for number, (name, view) in enumerate(views.items()):
        key = f"{sweep}{f':{number}' if number or not sweep else ''}"  # a sweep may have the experiment's name
        state = _describe_view(view, varying, rounds)
        while len(text := json.dumps(state)) > LARGEST:
            state["compareRunCharts"].pop()  # a folded one, which MLflow then makes itself
        client.set_experiment_tag(experiment, f"mlflow.sharedViewState.{key}", text)
        addresses[name] = f"{runs_page}{TRAINING}&compareRunsMode=CHART&viewStateShareKey={quote(key, safe='')}"
    if sweep:
        addresses["the sweep's own page, with a table (Show more)"] = (
            f"{runs_page}/{known[sweep].info.run_id}{TRAINING}"
        )
    return addresses


class _View(NamedTuple):
    """Runs, which MLflow finds by the filter. columns: of the table, those with charts of their own; "": all in one."""

    filter: str
    runs: "Sequence[AnyRun]"
    columns: Sequence[str] = ("",)


@dataclass(frozen=True)
class _Varying:
    """The parameters that vary among runs, and as what charts show them.

    Attributes:
        params: each run's.
        has_words: True if the runs get words for parameters that some of them lack.
    """

    params: Sequence[Mapping[str, str]]
    has_words: bool = False

    @cached_property
    def keys(self) -> list[str]:
        """Their names: the method's first, the seed last."""
        order = ("algorithm", "partition", "data", "model", *PLAIN, "seed")
        values = {key: {run.get(key, NONE) for run in self.params} for key in sorted({*chain(*self.params)})}
        values = {key: of if key.startswith(PLAIN) else of - {NONE} for key, of in values.items()}
        varying = [key for key, of in values.items() if len(of) > 1 and key.partition(".")[0] in order]
        varying = [key for key in varying if " " not in key]  # written for charts
        return sorted(varying, key=lambda key: (order.index(key.partition(".")[0]), not key.endswith(".name")))

    @cached_property
    def having(self) -> dict[str, int]:
        """Number of runs that have each, in their order: no seed, and options of methods only if they vary within one.

        A chart over ρ would show methods if each has its own.
        """
        methods = defaultdict[str, list[Mapping[str, str]]](list)
        for run in self.params:
            methods[run.get("algorithm.name", "")].append(run)
        return {
            key: sum(run.get(key, NONE) != NONE for run in self.params)
            for key in self.keys
            if key == "algorithm.name"
            or (key.startswith("algorithm.") and any(len({run.get(key) for run in of}) > 1 for of in methods.values()))
            or not key.startswith(("algorithm.", "seed"))
        }

    @property
    def points(self) -> list[str]:
        """The method and its option that most runs have, such as ρ, by which the number has points."""
        options = [key for key in self.having if key.startswith("algorithm.") and key != "algorithm.name"]
        options.sort(key=lambda key: -self.having[key])
        return [*(["algorithm.name"] if "algorithm.name" in self.having else []), *options[:1]]

    @cached_property
    def words(self) -> dict[str, str]:
        """Key that some runs lack -> the parameter that has it as words, `ρ of algorithm`, which MLflow lists late.

        Parallel coordinates leave out runs that lack a number on an axis, or all others if these are fewer than half;
        words they draw, at most `WORDS` of them.
        """
        values = {key: {run.get(key, NONE) for run in self.params} for key in self.having if self.has_words}
        few = [key for key in values if NONE in values[key] and len(values[key]) <= WORDS]
        return {key: f"{_find_symbol(key)} of {key.partition('.')[0]}" for key in few}

    def list_axes(self, words: Mapping[str, str]) -> list[str]:
        """Return the axes of parallel coordinates, at most `AXES` that most runs have.

        With more values than words can show, those that `MOST` runs have are an axis of numbers.
        """
        drawn = [key for key in self.having if key in words or self.having[key] >= MOST * len(self.params)]
        chosen = sorted(drawn, key=lambda key: -self.having[key])[:AXES]
        return [words.get(key, key) for key in self.having if key in chosen]

    def show(self, run: "AnyRun") -> dict[str, str]:
        """Return the parameters of a run that charts need; MLflow's draw those that lack one beside the largest."""
        shown = {key: run.data.params.get(key, NONE) for key in self.having}
        words = {
            name: NONE if shown[key] == NONE else f"{_find_symbol(key)}={shorten_number(shown[key])}"
            for key, name in self.words.items()
        }
        return shown | words


def _find_symbol(key: str) -> str:
    return Component.get_symbol(key.partition(".")[2])


def _split(whole: _View, keys: Sequence[str], names: Mapping[str, str]) -> Iterator[tuple[str, _View]]:
    """Yield the view of each setting of the data and what else varies, if they are few; names: of their columns."""
    keys = [key for key in keys if not key.startswith("algorithm.") and key != "seed"]
    settings: dict[tuple[str, ...], list[AnyRun]] = defaultdict(list)
    for run in whole.runs[::-1]:
        settings[tuple(run.data.params.get(key, NONE) for key in keys)].append(run)
    for values, runs in settings.items() if 1 < len(settings) <= SPLITS else ():
        wanted = dict(zip(keys, values, strict=True))
        conditions = [f"params.`{key}` = {value!r} AND " for key, value in wanted.items()]
        column = names.get(runs[0].data.tags.get(store.SETTING, ""), "")
        view = _View("".join([*conditions, whole.filter]), runs)
        yield column or ", ".join(f"{key}={value}" for key, value in wanted.items()), view


def _describe_view(view: _View, varying: _Varying, rounds: str) -> dict[str, Any]:
    """Return a view as MLflow's page keeps it; varying: among all runs; rounds: those behind the sweep's number."""
    from fedray.tracking.means import DEVIATION, name_column, name_point

    of_columns = tuple(f"{name} " for name in FIRST)  # written for charts of a column
    logged = {name for run in view.runs for name in run.data.metrics if not name.startswith(store.SUMMARY)}
    logged = {name for name in logged if not name.startswith(of_columns)}
    numbers = [f"{store.SUMMARY}{LAST}{name}" for name in FIRST]
    number = next((name for name in numbers if any(name in run.data.metrics for run in view.runs)), numbers[0])
    own = _Varying([run.data.params for run in view.runs if run.data.params])
    spread = [f"metrics.`{number}{DEVIATION}`"] * any(number + DEVIATION in run.data.metrics for run in view.runs)
    table = [*(f"params.`{key}`" for key in own.keys), f"metrics.`{number}`", *spread, "tags.`fedray.status`"]
    ends = list(map(name_column, view.columns))
    curves = [FIRST[0] + end for end in ends]
    opened = [name + end for name in FIRST[1:] if name in logged for end in ends]
    folded = sorted(logged - {*curves, *opened})
    axes = own.list_axes(varying.words)
    parallel = {"selectedParams": axes, "selectedMetrics": [number], "showAllRuns": True}
    scatter = {"yaxis": {"key": number, "type": "METRIC"}, "runsCountToCompare": len(view.runs)}
    section = {"display": True, "isReordered": True, "deleted": False, "isGenerated": True, "cardHeight": HEIGHT}
    return {
        "searchFilter": view.filter,
        "orderByKey": f"metrics.`{number}`",  # ordered by time, MLflow adds the sweep's own run
        "orderByAsc": False,
        "runsHiddenMode": "SHOW_ALL",
        "selectedColumns": table,
        "columnOrder": table,
        "columnWidths": dict.fromkeys((f"metrics.`{number}`", *spread), WIDTH),
        "compareRunCharts": [
            *(_describe_curves(name, "curves") for name in curves),
            *(
                _describe_chart(
                    "SCATTER", f"points {point}", "curves", xaxis={"key": point, "type": "PARAM"}, **scatter
                )
                for point in (name_point(key, end) for key in varying.points[::-1] for end in ends)
            ),
            *(_describe_curves(name, "curves") for name in opened),
            *([_describe_chart("PARALLEL", "parallel", "wide", **parallel)] if axes else []),
            _describe_chart("BAR", number, "wide", metricKey=number, runsCountToCompare=len(view.runs)),
            *(_describe_curves(name, "more") for name in folded),
        ],
        "compareRunSections": [
            {**section, "uuid": "curves", "name": f"{number.removeprefix(store.SUMMARY)}: {rounds}", "columns": 2},
            {**section, "uuid": "wide", "name": "Parallel coordinates and bars", "columns": 1},
            # MLflow's own name: a metric that is logged later comes here.
            {**section, "uuid": "more", "name": "Model metrics", "display": False},
            {**section, "uuid": "summary", "name": store.SUMMARY.rstrip("/"), "display": False, "isReordered": False},
        ],
        "isAccordionReordered": True,
    }


def _describe_chart(kind: str, uuid: str, section: str, **more: Any) -> dict[str, Any]:
    """Return a chart as MLflow's page keeps it."""
    return {"type": kind, "uuid": uuid, "metricSectionId": section, "isGenerated": True, "deleted": False, **more}


def _describe_curves(metric: str, section: str) -> dict[str, Any]:
    """Return a chart of a metric by round."""
    more = {"displayName": metric, "lineSmoothness": 0, "xAxisKey": "step", "useGlobalXaxisKey": True}
    return _describe_chart("LINE", metric, section, metricKey=metric, **more)


def _describe_rounds(runs: "Sequence[AnyRun]") -> str:
    """Return which rounds the number is a mean of, as tables say it; a run stands for all that are tested like it."""
    reader, _ = store.open_reader()
    alike = {
        tuple(run.data.params.get(key) for key in ("training.rounds", "evaluation.every", "evaluation.last")): run
        for run in runs
        if store.read_status(run) is Status.FINISHED
    }
    counted = list[list[int]]()
    for run in alike.values():
        if tested := sorted({point.step for point in reader.get_metric_history(run.info.run_id, FIRST[0])}):
            counted.append([step for step in tested if step in list_last_rounds(tested[-1])])
    return describe_rounds(counted)


def _mark_listed(sweep: str, client: "MlflowClient", parent: "AnyRun") -> tuple[dict[str, Cell], dict[str, Look]]:
    """Mark and name the runs of the cells that a sweep lists now, and only these; return the cells with their looks."""
    reader, experiment = store.open_reader()
    cells = store.read_cells(reader, parent)
    runs = store.pick_best(store.find_runs(reader, experiment, cells))
    marked = {run.info.run_id for run in store.search(reader, experiment, store.select_listed(sweep))}
    looks = choose_looks(cells)
    for hash, look in looks.items():
        if (run := runs.get(hash)) is None:
            continue
        if run.info.run_name != look.name:
            client.update_run(run.info.run_id, name=look.name)
        if run.data.tags.get(store.COLOUR) != look.colour:
            client.set_tag(run.info.run_id, store.COLOUR, look.colour)
        if run.info.run_id not in marked:
            client.set_tag(run.info.run_id, store.LISTED + sweep, "yes")
    for id in marked - {run.info.run_id for run in runs.values()}:
        client.delete_tag(id, store.LISTED + sweep)
    return cells, looks
