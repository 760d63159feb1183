"""Archives of strangers: each row of a table is a trick, and none of them reaches a file or the store."""

import json
import os
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from fedray.cli.archive import import_
from fedray.common.errors import UserError
from fedray.common.identity import hash_of
from fedray.tracking import archive_check
from fedray.tracking.archive import export_sweep, import_sweep
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import history, write
from tests.tracking.archived import FEDAVG, cell

CELL = cell(FEDAVG, 0.1, 0)
RUN = f"runs/{CELL['hash']}/run.json"
FOLDER = f"runs/{CELL['hash']}/artifacts"

Members = list[tuple[zipfile.ZipInfo, bytes]]
"""What an archive holds, in its order."""
Trick = Callable[[Members], Members]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Members:
    """An archive as `export` writes it: a sweep of one cell, which has finished."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        write(Tracker(), [CELL], [history(60, 70)])
        export_sweep("sweep", folder / "sweep.zip")
    with zipfile.ZipFile(folder / "sweep.zip") as archive:
        return [(member, archive.read(member)) for member in archive.infolist()]


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an empty store, which is still empty afterwards, and nothing but an archive has come into being."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "evil.zip",
        "store",
        "store/mlflow.db",
    ]
    assert MlflowClient().get_experiment_by_name("fedray") is None


def pack(file: Path, members: Members) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members:
            archive.writestr(member, content)
    return file


def refuse(store: Path, message: str) -> None:
    """`evil.zip` is refused in one line, which holds the message and nothing that steers a terminal."""
    with pytest.raises(UserError) as caught:
        import_sweep(store / "evil.zip")
    assert str(caught.value).startswith(f"{store / 'evil.zip'}: cannot be read as an archive of fedray: ")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


# Members


def named(name: str, mode: int = 0) -> zipfile.ZipInfo:
    """A member of exactly this name, which ZipInfo's constructor would shorten at a NUL."""
    member = zipfile.ZipInfo("x")
    member.filename = member.orig_filename = name
    member.external_attr = mode << 16
    return member


def put(name: str, content: bytes = b"owned", mode: int = 0) -> Trick:
    return lambda members: [*members, (named(name, mode), content)]


NAME = "is not the name of a file that an archive holds"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{FOLDER}/{{outside}}/x", NAME),  # an empty part, and behind it an absolute path
        ("{outside}/x", NAME),
        (f"{FOLDER}/../../../../x", NAME),
        (f"{FOLDER}/a/../../x", NAME),
        ("../x", NAME),
        (f"{FOLDER}/C:/x", NAME),
        ("C:x", NAME),
        (f"{FOLDER}/..\\..\\x", NAME),
        (f"{FOLDER}/a\\x", NAME),
        (f"{FOLDER}//x", NAME),
        (f"{FOLDER}/./x", NAME),
        (f"{FOLDER}/a/", NAME),
        (f"{FOLDER}/", NAME),
        (f"{FOLDER}/x\0.png", NAME),
        (f"{FOLDER}/" + 5000 * "x", NAME),
        (f"{FOLDER}/" + "/".join(100 * "x"), NAME),
        (f"{FOLDER}/x\n", NAME),
        (f"{FOLDER}/\x1b[2Jx", NAME),
        (f"{FOLDER}/\u202egnp.x", NAME),
        (f"{FOLDER}/.bashrc", NAME),
        (f"{FOLDER}/~/x", NAME),
        ("runs/../run.json", NAME),
        ("runs/../../x/run.json", NAME),
        ("runs/" + 16 * "G" + "/run.json", NAME),
        ("run.json", NAME),
        ("", NAME),
        (RUN, "is there twice"),
        ("sweep.json", "is there twice"),
        (f"{FOLDER}/config.yaml/x", "is a file and a folder"),
        (f"runs/{16 * '0'}/run.json", f"runs/{16 * '0'}: sweep.json lists no such cell"),
        (f"runs/{16 * '0'}/artifacts/x", f"runs/{16 * '0'}: sweep.json lists no such cell"),
    ],
    ids=lambda name: ascii(name)[:40],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_of_members(name: str, message: str, exported: Members, store: Path) -> None:
    pack(store / "evil.zip", put(name.format(outside=store / "outside"))(exported))
    refuse(store, message)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR])
def test_kinds_of_members(kind: int, exported: Members, store: Path) -> None:
    pack(store / "evil.zip", put(f"{FOLDER}/x", b"/etc/passwd", kind | 0o777)(exported))
    refuse(store, f"'{FOLDER}/x' is not a regular file")


def test_the_same_archive_without_a_trick_is_taken(
    exported: Members, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the other tests would prove nothing."""
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    members = put(f"{FOLDER}/plots/round 1.png")(exported)
    assert import_sweep(pack(tmp_path / "good.zip", members)) == ("sweep", 1, 0)
    assert len(list(tmp_path.rglob("plots/round 1.png"))) == 1


# Sizes


def huge(members: Members) -> Members:
    """A member that unpacks to 300 MB; deflated it has 300 kB."""
    return put(f"{FOLDER}/zeros", bytes(300 << 20))(members)


def many(members: Members) -> Members:
    return [*members, *((named(f"{FOLDER}/{k}"), b"") for k in range(70_000))]


def patched(offset: int, layout: str, value: int) -> Callable[[Path], None]:
    """Change a number of the entry of the last member in the zip's list of members."""

    def patch(file: Path) -> None:
        data = bytearray(file.read_bytes())
        struct.pack_into(layout, data, data.rindex(b"PK\1\2") + offset, value)
        file.write_bytes(data)

    return patch


def with_end(offset: int, layout: str, value: int) -> Callable[[Path], None]:
    def patch(file: Path) -> None:
        data = bytearray(file.read_bytes())
        struct.pack_into(layout, data, len(data) - 22 + offset, value)
        file.write_bytes(data)

    return patch


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def flip(file: Path) -> None:
    """Change a byte of the last member's content, which is stored uncompressed."""
    file.write_bytes(file.read_bytes().replace(b"owned", b"0wned"))


def grow(file: Path) -> None:
    """5 GB, without a byte on the disk."""
    with file.open("r+b") as opened:
        opened.truncate(5 << 30)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(file: Path) -> None:
        file.unlink()
        make(file)

    return replace


@pytest.mark.parametrize(
    ("trick", "spoil", "message"),
    [
        (huge, None, f"'{FOLDER}/zeros' has 314572800 bytes; at most 268435456 are allowed"),
        (put("sweep.json", b" " * (65 << 20)), None, "has 68157440 bytes; at most 67108864 are allowed"),
        (many, None, "it has too many members"),
        (None, patched(24, "<I", 3 << 30), "has 3221225472 bytes; at most 268435456 are allowed"),
        (put(f"{FOLDER}/x"), patched(8, "<H", 1), "encrypted"),
        (put(f"{FOLDER}/x"), patched(10, "<H", 99), "compression method is not supported"),
        (put(f"{FOLDER}/x"), patched(42, "<I", 0), f"{FOLDER}/x is damaged"),  # it lies where the first member does
        (put(f"{FOLDER}/x"), flip, f"{FOLDER}/x is damaged"),
        (None, with_end(12, "<I", 1 << 31), "it has too many members"),
        (None, with_end(16, "<I", 1 << 31), "Invalid argument"),
        (None, truncate, "it is not a zip file, or something follows its end"),
        (None, grow, "the file has 5368709120 bytes; at most 4294967296 are allowed"),
        (None, replaced(lambda file: file.write_bytes(b"")), "it is not a zip file, or something follows its end"),
        (None, replaced(lambda file: file.write_bytes(b"no zip" * 9)), "it is not a zip file"),
        (None, replaced(os.mkfifo), "the file is not a regular one"),
        (None, replaced(lambda file: file.symlink_to("/dev/zero")), "the file is not a regular one"),
        (None, replaced(Path.mkdir), "the file is not a regular one"),
        (None, replaced(lambda file: file.symlink_to("evil.zip")), "Too many levels of symbolic links"),
    ],
    ids=[
        "bomb", "sweep.json", "many", "claim", "encrypted", "method", "overlap", "checksum", "directory", "offset",
        "cut", "large", "empty", "text", "fifo", "device", "folder", "loop",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_sizes_and_files(
    trick: Trick | None, spoil: Callable[[Path], None] | None, message: str, exported: Members, store: Path
) -> None:
    """The limits: 64 MiB for JSON, 256 MiB for an artefact, 4 GiB for the file; and files that are no archives."""
    members = exported if trick is None else trick(exported)
    if trick is not None and trick is not huge and trick is not many:
        members = [(plain(member), content) for member, content in members]
    pack(store / "evil.zip", members)
    if spoil is not None:
        spoil(store / "evil.zip")
    refuse(store, message)


def plain(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    member.compress_type = zipfile.ZIP_STORED
    return member


def test_the_whole_archive_has_a_limit(exported: Members, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many members, none of them too large: here 12 of 1 MB, with a limit of 10 MB."""
    monkeypatch.setattr(archive_check, "UNPACKED", 10_000_000)
    pack(store / "evil.zip", [*exported, *((named(f"{FOLDER}/{k}"), bytes(1_000_000)) for k in range(12))])
    refuse(store, "at most 10000000 are allowed")


# Contents of the JSON members

Change = Callable[[dict[str, Any]], object]


def rewritten(name: str, change: Change | bytes) -> Trick:
    """Change what a JSON member says; bytes replace it."""

    def rewrite(members: Members) -> Members:
        found = []
        for member, content in members:
            if member.filename == name:
                if isinstance(change, bytes):
                    content = change
                else:
                    document = json.loads(content)
                    change(document)
                    content = json.dumps(document).encode()
            found.append((member, content))
        return found

    return rewrite


def at(*path: Any, to: Any) -> Change:
    """Set the value at a path of keys and indices."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


def without(key: str) -> Change:
    return lambda document: document.pop(key)


def identified(change: Change) -> Change:
    """Change the identity of the cell, and give it the hash of the changed one."""

    def both(document: dict[str, Any]) -> None:
        cell = document["cells"][0]
        change(cell["identity"])
        cell["hash"] = hash_of(cell["identity"])

    return both


DEEP = b'{"format": 1, "name": "x", "description": "", "cells": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
LONG = b'{"format": 1, "name": "x", "description": "", "cells": [' + b"0," * 3_000_000 + b"0]}"
DIGITS = b'{"format": ' + b"9" * 5000 + b', "name": "x", "description": "", "cells": []}'
MANY = at("cells", 0, "config", to={str(k): 0 for k in range(5000)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (b"{", "invalid JSON"),
        (b"", "invalid JSON"),
        (b"[]", "expected a"),
        (b"\xff\xfe", "invalid JSON"),
        (DEEP, "recursion limit exceeded"),
        (LONG, "cells.0"),
        (DIGITS, "number out of range"),
        (without("name"), "name is required"),
        (without("cells"), "cells is required"),
        (at("more", to=1), "more"),
        (at("format", to=2), "it was made by a newer version of fedray (format 2)"),
        (at("format", to="1"), "format"),
        (at("name", to=""), "name"),
        (at("name", to="../../evil"), "name"),
        (at("name", to="a/../../evil"), "name"),
        (at("name", to="/etc"), "name"),
        (at("name", to="two\nlines"), "name"),
        (at("name", to="x\n"), "name"),
        (at("name", to="\x1b[31mred"), "name"),
        (at("name", to="it's"), "name"),
        (at("name", to='"'), "name"),
        (at("name", to="x" * 121), "name"),
        (at("name", to=7), "name"),
        (at("description", to="x" * 9000), "description"),
        (at("description", to="\x1b]0;title\x07"), "description"),
        (at("cells", to=7), "cells"),
        (at("cells", to=[7]), "cells.0"),
        (at("cells", to=2 * [CELL]), "a cell is listed twice"),
        (at("cells", 0, "hash", to="../../x"), "cells.0.hash"),
        (at("cells", 0, "hash", to="' OR 1=1 --"), "cells.0.hash"),
        (at("cells", 0, "hash", to=CELL["hash"].upper()), "cells.0.hash"),
        (at("cells", 0, "hash", to=CELL["hash"] + "\n"), "cells.0.hash"),
        (
            at("cells", 0, "hash", to=16 * "0"),
            f"the hash {16 * '0'} is not that of its identity, which is {CELL['hash']}",
        ),
        (at("cells", 0, "identity", "seed", to=5), f"the hash {CELL['hash']} is not that of its identity"),
        (at("cells", 0, "identity", to={}), f"the hash {CELL['hash']} is not that of its identity"),
        (lambda document: document["cells"][0].pop("identity"), "cells.0.identity is required"),
        (identified(at("seed", to=5)), f"runs/{CELL['hash']}: sweep.json lists no such cell"),
        (at("cells", 0, "label", to=""), "cells.0.label"),
        (at("cells", 0, "label", to="\x1b[2J"), "cells.0.label"),
        (at("cells", 0, "label", to="two\nlines"), "cells.0.label"),
        (at("cells", 0, "label", to="\u202etxt"), "cells.0.label"),
        (at("cells", 0, "label", to="x" * (1 << 20)), "cells.0.label"),
        (at("cells", 0, "config", to=[]), "cells.0.config"),
        (at("cells", 0, "config", "seed", to=10**30), "cells.0.config"),
        (at("cells", 0, "config", "seed", to=float("nan")), "cells.0.config"),
        (at("cells", 0, "config", "data", "name", to="x\0"), "cells.0.config"),
        (at("cells", 0, "config", "\x1b[2J" * 1000, to=1), "cells.0.config"),
        (MANY, "at most 1000 entries are allowed"),
        (at("cells", 0, "status", to="finished"), "cells.0"),
        (at("cells", 0, "tuned", to="x"), "cells.0.tuned"),
        (at("cells", 0, "plugins", to=[1]), "cells.0.plugins"),
        (at("cells", 0, "search", to={"keys": [1], "select": "x"}), "cells.0.search.keys.0"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_the_sweep_says(change: Change | bytes, message: str, exported: Members, store: Path) -> None:
    pack(store / "evil.zip", rewritten("sweep.json", change)(exported))
    refuse(store, message)


ACCURACY = ("metrics", "test_accuracy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (b'{"name": "x"}', "is required"),
        (b"7", "expected a"),
        (without("metrics"), "metrics is required"),
        (at("more", to=1), "more"),
        (at("name", to=""), "name"),
        (at("name", to="x" * (1 << 20)), "name"),
        (at("name", to="\x1b[2J"), "name"),
        (at("status", to="RUNNING"), "status"),
        (at("status", to="running"), "an archive holds runs that have ended"),
        (at("status", to="missing"), "an archive holds runs that have ended"),
        (at("status", to="excellent"), "status"),
        (at("status", to=1), "status"),
        (at("start", to=-1), "start"),
        (at("start", to=10**30), "start"),
        (at("start", to=10**15), "start"),
        (at("start", to=1.5), "start"),
        (at("start", to=True), "start"),
        (at("end", to="now"), "end"),
        (at("tags", "it's", to="x"), "tags"),
        (at("tags", "a/../b", to="x"), "tags"),
        (at("tags", "x" * 251, to="x"), "tags"),
        (at("tags", "", to="x"), "tags"),
        (at("tags", "mlflow.parentRunId", to="0" * 32), "an archive does not carry this tag of MLflow's"),
        (at("tags", "mlflow.log-model.history", to="[]"), "an archive does not carry this tag of MLflow's"),
        (at("tags", "note", to="x" * 8001), "tags"),
        (at("tags", "note", to="\x1b[2J"), "tags"),
        (at("tags", "note", to=None), "tags"),
        (at("tags", to={str(k): "" for k in range(2000)}), "at most 1000 entries are allowed"),
        (at("params", "it's", to="x"), "params"),
        (at("params", "/abs", to="x"), "params"),
        (at("params", "seed", to=1), "params"),
        (at("params", "seed", to="x" * 6001), "params"),
        (at("metrics", "../up", to=[]), "metrics"),
        (at("metrics", "a|b", to=[]), "metrics"),
        (at("metrics", "x\n", to=[]), "metrics"),
        (at("metrics", to={str(k): [] for k in range(20_000)}), "at most 9999 entries are allowed"),
        (at(*ACCURACY, to=7), "metrics.test_accuracy"),
        (at(*ACCURACY, to=[[1.0, 0]]), "metrics.test_accuracy.0"),
        (at(*ACCURACY, to=[["1", 0, 0]]), "metrics.test_accuracy.0"),
        (at(*ACCURACY, to=[[1.0, 10**30, 0]]), "metrics.test_accuracy.0.1"),
        (at(*ACCURACY, to=[[1.0, 0, -1]]), "metrics.test_accuracy.0.2"),
        (at(*ACCURACY, to=[[1.0, 0, 2**40]]), "metrics.test_accuracy.0.2"),
        (at(*ACCURACY, to=[[1.0, 0, 0.5]]), "metrics.test_accuracy.0.2"),
        (at(*ACCURACY, to=[[10**400, 0, 0]]), "metrics.test_accuracy.0.0"),
        (at(*ACCURACY, to=[[True, 0, 0]]), "metrics.test_accuracy.0.0"),
        (at(*ACCURACY, to=1_000_001 * [[1.0, 0, 0]]), "metrics.test_accuracy"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_a_run_says(change: Change | bytes, message: str, exported: Members, store: Path) -> None:
    pack(store / "evil.zip", rewritten(RUN, change)(exported))
    refuse(store, message)


def test_a_member_is_missing(exported: Members, store: Path) -> None:
    pack(store / "evil.zip", [one for one in exported if one[0].filename != "sweep.json"])
    refuse(store, "there is no sweep.json in it")
    pack(store / "evil.zip", [one for one in exported if one[0].filename != RUN])
    refuse(store, f"there is no {RUN} in it")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (("training", "lr"), 0.2, "training.lr: the configuration says 0.2, the identity of the cell 'the default'"),
        (("seed",), 7, "seed: the configuration says 7, the identity of the cell 0"),
        (("partition", "alpha"), 0.5, "partition.alpha: the configuration says 0.5, the identity of the cell 0.1"),
    ],
    ids=str,
)
def test_the_only_fault_is_a_configuration_of_another_cell(
    key: tuple[str, ...], value: object, message: str, exported: Members, store: Path
) -> None:
    """`fedray import`; the hash is that of the identity, and every checksum is right."""
    pack(store / "evil.zip", rewritten("sweep.json", at("cells", 0, "config", *key, to=value))(exported))
    with pytest.raises(UserError) as caught:
        import_(store / "evil.zip")
    assert str(caught.value) == f"{store / 'evil.zip'}: cell {CELL['hash']}: {message}"
