"""A store behind a password, and a proxy in front of it that refuses all requests for a while."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from mlflow import MlflowClient

from tests.sweep.running import SWEEP, done, fedray, logged_once, server, start, state_hashes, undisturbed, until
from tests.tracking.proxy import PASSWORD, USER, Proxy, serving


@pytest.fixture
def store(tmp_path: Path, port: int) -> Iterator[Proxy]:
    with server(tmp_path, port), serving(Proxy(port)) as made:
        yield made


def address(made: Proxy) -> str:
    return f"http://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{made.port}"


@pytest.mark.faults
@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_proxy_that_refuses_for_a_while_is_ridden_out(status: int, store: Proxy, tmp_path: Path) -> None:
    """From the first cell's outcome to the third's all requests get the answer `status`; at the end nothing is lost."""
    driver = start(tmp_path, SWEEP, MLFLOW_TRACKING_URI=address(store))
    until(driver, "[1/4]")
    store.refuse = status
    until(driver, "[3/4]")
    store.refuse = 0
    assert "small: 4 finished" in done(driver)
    assert state_hashes(tmp_path) == undisturbed(SWEEP)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_who_is_refused_at_the_start_is_told_in_one_line_and_nothing_runs(store: Proxy, tmp_path: Path) -> None:
    for refuse, uri in ((403, address(store)), (0, f"http://127.0.0.1:{store.port}")):
        store.refuse = refuse
        error = done(start(tmp_path, SWEEP, MLFLOW_TRACKING_URI=uri), 2)
        assert "MLFLOW_TRACKING_URI: the store cannot be used: " in error
        assert f"failed with error code {refuse or 401}" in error
        assert len(error.strip().splitlines()) == 1
        assert PASSWORD not in error
        assert quote(PASSWORD, safe="") not in error
    assert not list((tmp_path / ".fedray").glob("cells/*"))


@pytest.mark.faults
def test_an_experiment_that_is_deleted_meanwhile_is_one_line(store: Proxy, tmp_path: Path) -> None:
    driver = start(tmp_path, SWEEP, MLFLOW_TRACKING_URI=address(store))
    until(driver, "[1/4]")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    client.delete_experiment(client.get_experiment_by_name("fedray").experiment_id)
    error = done(driver, 2)
    assert "MLFLOW_TRACKING_URI: the store refuses a request: " in error
    assert "Traceback" not in error


@pytest.mark.faults
def test_a_store_that_answers_slowly_delays_no_training(store: Proxy, tmp_path: Path) -> None:
    """Eight cells with a second before each answer. The writes wait for each other, the cells do not wait for them:
    when the last cell ends, less than half of the log has arrived. A cell costs 12 requests: its run (create, two looks
    for a twin), three files, the data set, parameters, rows with the results, the confusion matrix, the end (2); and
    one more for each further report of rows, of which two rounds give at most two. The sweep costs 19; 4 of them store
    what Tune says of its trials. The next call asks for the eight outcomes
    at once."""
    sweep = SWEEP | {
        "base": SWEEP["base"] | {"training": SWEEP["base"]["training"] | {"rounds": 2}},
        "grid": {"algorithm": ["fedavg"], "seed": list(range(8))},
    }
    store.delay = 1.0
    driver = start(tmp_path, sweep, MLFLOW_TRACKING_URI=address(store))
    until(driver, "[8/8]")
    arrived = len(store.seen)
    assert "small: 8 finished" in done(driver)
    assert arrived < len(store.seen) / 2
    assert len(store.seen) <= 19 + 14 * 8, Counter(path.partition("?")[0] for path in store.seen)
    assert store.most == 1, "writes keep their order"
    assert state_hashes(tmp_path) == undisturbed(sweep)
    logged_once(tmp_path, 2)
    again = done(fedray(tmp_path, "sweep", "sweep.yaml", MLFLOW_TRACKING_URI=address(store)))
    assert "small: 8 cells, 8 finished" in again
    assert store.most >= 4


@pytest.mark.faults
def test_a_store_that_begins_to_send_a_byte_a_second_holds_up_no_cell_and_ends_in_one_line(
    store: Proxy, tmp_path: Path
) -> None:
    variables = {"MLFLOW_TRACKING_URI": address(store)}
    driver = start(tmp_path, SWEEP, **variables, FEDRAY_STORE_PATIENCE="3")
    until(driver, "[1/4]")
    store.drip = 1.0
    until(driver, "[4/4]")
    error = done(driver, 2)
    assert "MLflow has been unreachable for 3 s (no answer in 60 s); " in error
    assert "Traceback" not in error
    store.drip = 0.0
    assert "small: 4 finished" in done(fedray(tmp_path, "sweep", "sweep.yaml", **variables))
    assert state_hashes(tmp_path) == undisturbed(SWEEP)
    logged_once(tmp_path, 12)


@pytest.mark.faults
def test_sigterm_while_a_store_is_waited_for_ends_a_background_job_with_the_sentence(
    store: Proxy, tmp_path: Path
) -> None:
    """A shell starts what a script puts into the background with SIGINT ignored. The group has Ray's processes, too."""
    variables = {"MLFLOW_TRACKING_URI": address(store)}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        driver = start(tmp_path, SWEEP, **variables)
    finally:
        signal.signal(signal.SIGINT, before)
    until(driver, "[1/4]")
    store.drip = 1.0
    until(driver, "[4/4]")
    os.killpg(driver.pid, signal.SIGTERM)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == 130, err
    assert err.endswith("interrupted; run the same command again to resume\n")
    assert "SystemExit" not in err
    assert "***" not in err, "Ray's stack"
    store.drip = 0.0
    assert "small: 4 finished" in done(fedray(tmp_path, "sweep", "sweep.yaml", **variables))
    logged_once(tmp_path, 12)
