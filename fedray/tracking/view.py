"""Addresses in MLflow's UI, and the view of a sweep's charts that it opens."""

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import urlopen

from fedray.common.errors import redact, unknown
from fedray.common.location import is_server, refuse_unwritable_store, store_uri
from fedray.tracking.store import (
    EXPERIMENT,
    IS_CELL,
    LISTED,
    SETTING,
    SUMMARY,
    find_best_runs,
    find_sweeps,
    open_reader,
    open_store,
    read_cells,
    search,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

UI = "http://127.0.0.1:5000"
"""Default address of `fedray ui`."""
FIRST = ("test_accuracy", "personal_accuracy", "validation_accuracy", "test_loss")
"""Metrics whose charts are open in the view of a sweep."""
HEIGHT = 420
"""Height of a chart in pixels; its legend names a dozen groups."""
TRAINING = "?workflowType=machine_learning"
"""Query of MLflow's view of an experiment for training; the other view is for language models."""


def admit(host: str, port: int) -> tuple[str, dict[str, str]]:
    """Return the name under which a browser finds a server, and variables with which MLflow answers under it.

    MLflow refuses requests to a host that it does not know, and writes of a page from there: 403.

    Args:
        host: address that the server binds to.
        port: the server's.
    """
    if host in ("127.0.0.1", "::1", "localhost"):
        return host, {}
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
    """Return the address of a run in MLflow's UI if a server answers there, else the command that starts one.

    Args:
        run: its id.
    """
    uri = store_uri()
    remote = is_server(uri)
    server = redact(uri).rstrip("/") if remote else UI
    try:
        if not remote:
            with urlopen(f"{server}/api/2.0/mlflow/runs/get?run_id={run}", timeout=2):  # noqa: S310
                pass
    except OSError:
        return "`fedray ui` shows it"
    _, experiment = open_store()
    return f"{server}/#/experiments/{experiment}/runs/{run}{TRAINING}"


def save_view(sweep: str = "") -> str:
    """Save a view of the experiment's charts in MLflow and return its address without the server.

    The view has the curves of `FIRST`, averaged over seeds, one below the other; other metrics and the summaries are
    folded, and so are the runs of each group.

    Args:
        sweep: show only this sweep's cells.

    Raises:
        UserError: the store has no such sweep.
    """
    refuse_unwritable_store()
    client, experiment = open_store()
    if sweep and sweep not in (known := find_sweeps(client, experiment)):
        raise unknown("sweep", sweep, known, "`fedray status`")
    chosen = f" AND {_mark_listed(sweep, client)}" if sweep else ""
    filter = f"{IS_CELL} AND tags.`fedray.status` != 'superseded'{chosen}"
    runs = list(search(client, experiment, filter))
    logged = {name for run in runs for name in run.data.metrics if not name.startswith(SUMMARY)}
    groups = {run.data.tags[SETTING] for run in runs if SETTING in run.data.tags}
    section = {"display": True, "isReordered": True, "deleted": False, "isGenerated": True}
    view = {
        "searchFilter": filter,
        "runsHiddenMode": "SHOW_ALL",
        "groupBy": {
            "aggregateFunction": "average",
            "groupByKeys": [{"mode": "tag", "groupByData": SETTING}],
        },
        "groupsExpanded": {f"tag.{SETTING}.{group}": False for group in groups},
        "compareRunCharts": [
            *(_describe_chart(name, "curves") for name in FIRST if name in logged or name == FIRST[0]),
            *(_describe_chart(name, "more") for name in sorted(logged - set(FIRST))),
        ],
        "compareRunSections": [
            {**section, "uuid": "curves", "name": "Model metrics", "columns": 1, "cardHeight": HEIGHT},
            {**section, "uuid": "more", "name": "More metrics", "display": False},
            {**section, "uuid": "summary", "name": SUMMARY.rstrip("/"), "display": False, "isReordered": False},
        ],
        "isAccordionReordered": True,
    }
    name = sweep or EXPERIMENT
    client.set_experiment_tag(experiment, f"mlflow.sharedViewState.{name}", json.dumps(view))
    return f"/#/experiments/{experiment}/runs{TRAINING}&compareRunsMode=CHART&viewStateShareKey={quote(name, safe='')}"


def _describe_chart(metric: str, section: str) -> dict[str, Any]:
    """Return a chart of a metric by round, as MLflow's page keeps it."""
    return {
        "type": "LINE",
        "uuid": metric,
        "metricSectionId": section,
        "metricKey": metric,
        "displayName": metric,
        "isGenerated": True,
        "deleted": False,
        "lineSmoothness": 0,
        "xAxisKey": "step",
        "useGlobalXaxisKey": True,
    }


def _mark_listed(sweep: str, client: "MlflowClient") -> str:
    """Mark the runs of the cells that a sweep lists now, and only these; return the filter that selects them."""
    tag = LISTED + sweep
    is_listed = f"tags.`{tag}` = 'yes'"
    reader, experiment = open_reader()
    cells = [cell.hash for cell in read_cells(reader, find_sweeps(reader, experiment)[sweep])]
    wanted = {run.info.run_id for run in find_best_runs(reader, experiment, cells).values()}
    marked = {run.info.run_id for run in search(reader, experiment, is_listed)}
    for run in wanted - marked:
        client.set_tag(run, tag, "yes")
    for run in marked - wanted:
        client.delete_tag(run, tag)
    return is_listed
