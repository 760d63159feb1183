"""Data from strangers are read, never executed; secrets are neither printed nor logged."""

import contextlib
import io
import logging
import os
import pickle
import pty
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torchvision.datasets
import torchvision.datasets.utils
import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from fedray.analysis.data.collect import parse
from fedray.analysis.tables.published import match_published
from fedray.cells.cell import Cell
from fedray.cli import main as cli
from fedray.common.errors import UserError, redact
from fedray.common.process import block_signal
from fedray.config import RunConfig
from fedray.datasets import make_data_source
from fedray.datasets import torchvision_sets as pickles
from fedray.tracking import store, view
from tests.bad_input.case import RUN, Opens
from tests.conftest import Call, each, work_in
from tests.datasets import files
from tests.sweep.running import until_listening
from tests.tracking.proxy import Quiet, serving

PASSWORD, TOKEN = "pa55w0rd", "t0ken-in-query"
URI, GIT = f"http://me:{PASSWORD}@127.0.0.1:9/store?token={TOKEN}", "git+https://github.com/a/b@main"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work_in(tmp_path, monkeypatch)
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path  # type: ignore[misc]
    logging.setLogRecordFactory(logging.LogRecord)


@pytest.fixture
def capsys(capfd: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """What `call` gives is all that is written, not only by Python."""
    return capfd


# Files of strangers


def test_a_pickled_batch_runs_nothing_and_one_of_python_2_is_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with a correct checksum: the batch is what the pickle says, an object among the arrays."""
    files.cifar(here / "data", monkeypatch, "CIFAR10")
    path = here / "data" / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(pickle.dumps({"data": files.pixels(10, 3072), "labels": Opens()}, protocol=2))
    kind = torchvision.datasets.CIFAR10
    monkeypatch.setattr(kind, "train_list", [[name, files.md5(path.with_name(name))] for name, _ in kind.train_list])
    with pytest.raises(UserError, match=r"cannot be read: UnpicklingError: .*open is not allowed in a file of arrays"):
        make_data_source("cifar10").load()
    assert not (here / "owned").exists()
    # Protocol 2, bytes by way of a codec, labels as integers: what the published files hold.
    pixels = files.pixels(3, 3072)
    (here / "batch").write_bytes(pickle.dumps({"data": pixels, "fine_labels": [3, 1, 2], "batch_label": b"x"}, 2))
    images, labels = pickles.read_batch(here / "batch")
    np.testing.assert_array_equal(images, pixels.reshape(3, 3, 32, 32))
    assert labels == [3, 1, 2]


@pytest.mark.parametrize("name", ["builtins.eval", "os.system", "builtins.getattr", "numpy.load", "codecs.decode"])
def test_a_batch_names_no_function(here: Path, name: str) -> None:
    module, _, function = name.rpartition(".")
    (here / "batch").write_bytes(f"c{module}\n{function}\n.".encode())
    with pytest.raises(pickle.UnpicklingError, match="is not allowed"):
        pickles.read_batch(here / "batch")


def tar_of(path: Path, member: tarfile.TarInfo, content: bytes = b"owned") -> None:
    with tarfile.open(path, "w:gz") as tar:
        member.size = len(content) if member.isreg() else 0
        tar.addfile(member, io.BytesIO(content))


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


LINKS = [member("link", tarfile.SYMTYPE, "../.."), member("hard", tarfile.LNKTYPE, "../owned")]
HOSTILE = [member("../owned"), *LINKS, member("device", tarfile.CHRTYPE)]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda info: f"{info.name} {info.type!r}")
def test_an_archive_unpacks_nothing_outside(here: Path, monkeypatch: pytest.MonkeyPatch, hostile: Any) -> None:
    """CIFAR's archive by way of `fetch`: the download is replaced, what unpacks it is the real thing."""

    def download(url: str, root: str, filename: str | None = None, md5: str | None = None) -> None:
        Path(root).mkdir(parents=True, exist_ok=True)
        tar_of(Path(root) / (filename or Path(url).name), hostile)

    monkeypatch.setattr(torchvision.datasets.utils, "download_url", download)
    with pytest.raises(UserError, match="cifar10 could not be downloaded"):
        make_data_source("cifar10").fetch()
    assert {str(path.relative_to(here)) for path in here.rglob("*")} <= {"data", "data/cifar-10-python.tar.gz"}


DECOYS = (
    *("mlflow", "socket", "yaml", "json", "numpy", "torch", "ray", "typer", "pydantic", "rich", "click", "alembic"),
    *("sqlalchemy", "uvicorn", "fastapi", "flask", "webbrowser", "pandas", "optuna", "random", "logging", "sklearn"),
    *("statistics", "digits"),
)
"""Modules that fedray, MLflow's server, Ray's processes and the opener of a browser import; the last is nobody's."""
PLUG_IN = """
from fedray.algorithms.base import Algorithm
class Mine(Algorithm):
    def direction(self, c):
        import statistics
        assert statistics.fmean([1, 3]) == 2
        return c.grad(c.theta)
"""
"""It is searched for in the working folder, after all others."""


@pytest.fixture
def decoys(here: Path) -> Path:
    """The working folder, with a file and a package of each of these names that say when they are imported."""
    for name in DECOYS:
        code = f"open({str(here / 'owned')!r}, 'a').write({name!r} + chr(10))\n"
        (here / f"{name}.py").write_text(code)
        (here / name).mkdir()
        (here / name / "__init__.py").write_text(code)
    (here / "plug_in.py").write_text(PLUG_IN)
    base = {key: value for key, value in RUN.items() if key != "runtime"} | {"algorithm": "plug_in:Mine"}
    (here / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": base}))
    return here


def start(*words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *words], text=True, start_new_session=True, **more)


@pytest.mark.parametrize("line", ["status", "sweep sweep.yaml"])
def test_no_process_of_a_command_imports_from_the_working_folder(decoys: Path, line: str) -> None:
    """`python -m` itself puts it first. `sweep` starts Ray's servers and workers, which import a plug-in from there."""
    process = start("-m", "fedray", *line.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == (2 if line == "status" else 0), said
    assert not (decoys / "owned").exists(), (decoys / "owned").read_text()


def test_the_ui_imports_no_decoy(decoys: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path, port: int) -> None:
    """On a terminal, which makes it open a browser: here one that only notes that it was called."""
    store.open_store(create=True)
    monkeypatch.setenv("BROWSER", f"touch {decoys / 'opened'} %s")
    terminal, end = pty.openpty()
    process = start("-m", "fedray", "ui", "--port", str(port), stdout=end, stderr=subprocess.PIPE)
    try:
        until_listening(port)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            assert answer.status == 200
        for _ in range(600):
            if (decoys / "opened").exists():
                break
            time.sleep(0.1)
        assert (decoys / "opened").exists()
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(terminal)
        os.close(end)
    assert "Traceback" not in said, "of an end by Ctrl-C"
    assert "0.0.0.0" not in said, "MLflow's advice to open the server to others"  # noqa: S104
    assert not (decoys / "owned").exists(), (decoys / "owned").read_text()


# A user's classes come from the configuration that is launched


def test_a_name_in_the_store_is_not_imported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "stranger.py").write_text(f"open({str(here / 'owned')!r}, 'w').close()\nclass X: pass\n")
    monkeypatch.syspath_prepend(here)
    cell = Cell("", "", {"algorithm": {"name": "stranger:X", "rho": 0.1}})
    assert match_published("fedtoga/table1", "test_accuracy", {("row", "column"): [cell]})[0] == {}
    with pytest.raises(UserError, match="imports no class that a store names"):
        parse(cell, "--metric relative_flops")
    assert not (here / "owned").exists()
    with pytest.raises(UserError, match="is not a subclass of fedray"):  # by a configuration it is
        RunConfig.parse(RUN | {"algorithm": "stranger:X"})
    assert (here / "owned").exists()


# Secrets


@each(
    (URI, "http://***@127.0.0.1:9/store?token=***"),
    ("postgresql://me:a@b/c@host/db", "postgresql://***@host/db"),
    (f"{GIT} and http://me@host/x@y", f"{GIT} and http://***@host/x@y"),
    (f"password authentication failed: {PASSWORD}", "password authentication failed: ***"),
    ("Max retries exceeded with url: /?token=abc: refused", "Max retries exceeded with url: /?token=***: refused"),
    ("sqlite:////home/me/mlflow.db and me@host", "sqlite:////home/me/mlflow.db and me@host"),
)
def test_redacted(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a password with any character by its own address."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    assert redact(text) == shown
    for password in ("p/a@b:c", "p%2Fa%40b", "päß wörd"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://me:{password}@host/db")
        assert redact(f"cannot use postgresql://me:{password}@host/db") == "cannot use postgresql://***@host/db"
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "bearer-of-good")
    assert redact("Authorization: bearer-of-good") == "Authorization: ***"


def secret_in(text: str) -> bool:
    return PASSWORD in text or TOKEN in text


ADDRESSES = [URI.replace("http:", kind) for kind in ("http:", "postgresql:", "foo:")]


@each(
    *((line, ADDRESSES[0]) for line in ("sweep sweep.yaml --dry-run", "ui", "sweep sweep.yaml")),
    *(("run run.yaml", uri) for uri in (*ADDRESSES, URI.replace("127.0.0.1:9", "["), PASSWORD)),
)
def test_commands_hide_addresses(line: str, uri: str, here: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    base = {key: value for key, value in RUN.items() if key != "runtime"}
    (here / "run.yaml").write_text(yaml.safe_dump(RUN))
    (here / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": base}))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("there is no store to show"))
    code, out, err = call(*line.split())
    assert code == 2
    assert err.startswith("fedray: ")
    assert PASSWORD not in out + err or uri == PASSWORD  # a word alone is no address
    assert TOKEN not in out + err


def test_a_store_that_fails_in_a_run_tells_no_secret(
    here: Path, monkeypatch: pytest.MonkeyPatch, call: Call, caplog: pytest.LogCaptureFixture, empty_store: Path
) -> None:
    """A write is refused (400) in MLflow's own words, which repeat the address; so do the logs of others."""
    shutil.copy(empty_store, here)
    (here / "run.yaml").write_text(yaml.safe_dump(RUN | {"training": {"rounds": 1, "local_epochs": 1}}))
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)

    def fails(*_: Any, **__: Any) -> None:
        logging.getLogger("mlflow.store").warning("retrying %s", URI)
        logging.getLogger("urllib3.connectionpool").warning("a pool is full")
        try:
            raise ValueError(URI)
        except ValueError:
            logging.getLogger("urllib3").exception("no luck with %s", URI)
        raise MlflowException(f"API request to {URI} failed", error_code=INVALID_PARAMETER_VALUE)

    monkeypatch.setattr(MlflowClient, "log_artifact", fails)
    code, out, err = call("run", "run.yaml")
    assert code == 2
    assert "no luck with http://***@127.0.0.1:9/store?token=***" in caplog.text
    assert "retrying http://***@127.0.0.1:9/store?token=***" in err
    assert "a pool is full" not in err
    assert "API request to http://***@" in err
    assert not secret_in(out + err + caplog.text)


def test_a_run_logs_no_secret(here: Path, monkeypatch: pytest.MonkeyPatch, call: Call, empty_store: Path) -> None:
    """The user's own class raises with the address in its message: tag, artefact and screen omit the address."""
    shutil.copy(empty_store, here)
    (here / "leaks.py").write_text(
        "from fedray.algorithms.base import Algorithm\nclass Leaks(Algorithm):\n    name = 'leaks'\n"
        f"    def direction(self, c):\n        raise ValueError('cannot reach {URI}')\n"
    )
    (here / "run.yaml").write_text(yaml.safe_dump(RUN | {"algorithm": "leaks:Leaks"}))
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    code, out, err = call("run", "run.yaml")
    assert code == 2, "an error of the plug-in, in one line"
    assert not secret_in((out + err).replace(f"raise ValueError('cannot reach {URI}')", ""))
    (run,) = store.search(*store.open_store(), store.IS_CELL)
    assert "http://***@127.0.0.1:9/store?token=***" in run.data.tags["fedray.message"]
    stored = [path for path in (here / "mlartifacts").rglob("*") if path.is_file()]
    assert "traceback.txt" in {path.name for path in stored}
    with sqlite3.connect(here / "mlflow.db") as database:
        assert not secret_in("\n".join(database.iterdump()))
    assert not any(secret_in(path.read_text(errors="replace")) for path in stored)


class Started(NamedTuple):
    """What `fedray ui` would start: servers, and processes that announce an address."""

    servers: list[tuple[str, list[str], dict[str, str]]]
    announced: list[list[str]]


@pytest.fixture
def ui(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started([], [])
    monkeypatch.setattr(os, "execve", lambda *words: started.servers.append(words))
    monkeypatch.setattr(subprocess, "Popen", lambda words: started.announced.append(words[-3:]))
    monkeypatch.setattr(view, "save_view", lambda name: {"all runs": "/#/", "α=0.1": "/#/a"})
    return started


def test_the_address_is_printed_when_the_server_answers() -> None:
    """Not when its port is bound: MLflow imports for seconds until it answers. A server that ends ends it, too, so that
    it leaves Ctrl-C to the server."""
    answers, announcers = [503, 200], list[subprocess.Popen[str]]()

    class Health(Quiet):
        def do_GET(self) -> None:
            assert self.path == "/health"
            announcers[0].send_signal(signal.SIGINT)
            self.send_response(answers.pop(0))
            self.end_headers()

    with serving(Health) as server:
        words = ("-P", cli.server.__file__, "announce", f"127.0.0.1:{server.server_port}", "http://x/#/", "\nmore")
        announcers.append(start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        said = announcers[0].communicate(timeout=60)
    assert said == ("MLflow shows the runs at http://x/#/ (Ctrl-C ends it)\nmore\n", "")
    assert not answers


def test_ctrl_c_ends_the_server_quietly_whatever_it_does(tmp_path: Path) -> None:
    """While MLflow is imported or its own server is, which would be a traceback or `Aborted!`; also if both ignore the
    first one. It came before the server began: then nothing is started."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").touch()
    begin = "import signal, subprocess, sys, time; from pathlib import Path\n"
    wait = "Path('here').touch()\ntime.sleep(60)"
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    child = f"subprocess.run([sys.executable, '-c', {begin + wait!r}])"
    where, serve = os.environ | {"PYTHONPATH": str(tmp_path)}, ("-P", cli.server.__file__, "serve", "ui")
    for body, times in ((wait, 1), (child, 1), (deaf + wait, 2)):
        (tmp_path / "mlflow" / "cli.py").write_text(begin + body)
        server = start(*serve, env=where, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not (tmp_path / "here").exists():
            assert server.poll() is None
            time.sleep(0.01)
        for _ in range(times):
            os.killpg(server.pid, signal.SIGINT)
            time.sleep(0.1)
        assert (server.communicate(timeout=60), server.returncode) == (("", ""), 130)
        (tmp_path / "here").unlink()
    with block_signal(signal.SIGINT):
        server = start(*serve, env=where, cwd=tmp_path)
        server.send_signal(signal.SIGINT)
    assert server.wait(timeout=60) == 130
    assert not (tmp_path / "here").exists()


def test_the_ui_gets_the_address_unseen(here: Path, ui: Started, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Every user of the machine can read a command line."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI.replace("http:", "postgresql:"))
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "proxy.example")
    call("ui", "--port", "5999")
    call("ui", "--port", "5999", "--host", "127.0.0.2")
    (_, words, environment), (_, told, _) = ui.servers
    assert (words[words.index("--host") + 1], told[told.index("--host") + 1]) == ("127.0.0.1", "127.0.0.2")
    assert not secret_in(" ".join(words))
    assert environment["MLFLOW_BACKEND_STORE_URI"] == URI.replace("http:", "postgresql:")
    assert environment["MLFLOW_SERVER_ALLOWED_HOSTS"] == "proxy.example", "names that the user allows stay"
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false", "no processes for judging language models"
    assert words[words.index("--workers") + 1] == "1", "one process serves one user"


def test_the_ui_answers_to_its_own_names(here: Path, ui: Started, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """MLflow's own checks, with the variables that its server gets: it answered 403 under the machine's name, and to
    the queries of its page under any name. `attacker.example` may lead to this machine: its pages get nothing."""
    from mlflow.server.fastapi_security import get_allowed_hosts, get_allowed_origins
    from mlflow.server.security_utils import is_allowed_host_header, should_block_cors_request

    monkeypatch.setattr(socket, "create_server", lambda *_, family: contextlib.nullcontext())  # nothing listens outside
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "getfqdn", lambda: "node7.cluster.example")
    addresses = [(socket.AF_INET, 1, 6, "", ("203.0.113.7", 5999)), (socket.AF_INET6, 1, 6, "", ("2001:db8::7", 5999))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: addresses)
    call("ui", "--port", "5999", "--host", "0.0.0.0")  # noqa: S104
    assert ui.announced == [["0.0.0.0:5999", "http://node7:5999/#/", "\n  α=0.1: http://node7:5999/#/a"]]
    ((_, _, environment),) = ui.servers
    for name in ("MLFLOW_SERVER_ALLOWED_HOSTS", "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"):
        monkeypatch.setenv(name, environment[name])
    for name in ("node7", "node7.cluster.example", "203.0.113.7", "[2001:db8::7]", "localhost", "attacker.example"):
        assert is_allowed_host_header(get_allowed_hosts(), f"{name}:5999") == (name != "attacker.example"), name
        blocked = should_block_cors_request(f"http://{name}:5999", "POST", get_allowed_origins())
        assert blocked == (name == "attacker.example"), name
    assert is_allowed_host_header(get_allowed_hosts(), "10.1.2.3:5999"), "as MLflow's default, for forwarded ports"
