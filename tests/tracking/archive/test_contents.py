"""Archives whose JSON says what no export writes: each is refused in one line, and nothing is written."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from fedray.cells.spec import PluginLabels
from fedray.cli.archive import import_
from fedray.common.errors import UserError
from fedray.components.identity import hash_of
from fedray.tracking.archive.members import ArchivedPlugins
from fedray.tracking.archive.merge import import_sweep
from fedray.tracking.stored_sweep import read_stored_sweep
from tests.tracking.archive.tricks import CELL, FOLDER, RUN, Members, Trick, pack, refuse

Change = Callable[[dict[str, Any]], object]
ENVIRONMENT = "environments/*"


def rewritten(name: str, change: Change | bytes) -> Trick:
    """Change what the JSON members of a name or pattern say; bytes replace them."""

    def rewrite(members: Members) -> Members:
        found = []
        for member, content in members:
            if fnmatch(member.filename, name):
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


WORDS = {"symbols": {}, "required": {}, "names": {}, "titles": {}, "lower": []}
CHOICE = {
    "stage": "sweep/tune", "select": "last10_validation_accuracy", "held_out": {"fraction": 0.1, "from": "clients"},
    "train_on": "all", "seeds": [100], "searcher": "sobol", "scheduler": "",
    "values": {"training.lr": 0.1}, "score": 70.5, "draws": 4, "finished": 4, "rounds": 16, "gradients": 1200.0,
    "ranges": {"training.lr": "[0.01, 1], log"}, "edges": [],
}  # fmt: skip


def words(**changes: Any) -> Change:
    """Give the cell words of plug-ins, correct except for the changes."""
    return at("cells", 0, "plugins", to=WORDS | changes)


def chosen(**changes: Any) -> Change:
    """Say how the cell was chosen, correctly except for the changes."""
    return at("cells", 0, "tuned", to=CHOICE | changes)


def staged(name: str) -> Change:
    """Add a tune stage of this name."""
    return at("tune", to={"name": name, "description": "", "cells": []})


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
        (at("format", to=3), "it was made by a later version of fedray (format 3, this one reads up to 2)"),
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
        (at("name", to="\U0001d49c" * 51), "files are named after it, and it has 204 bytes; at most 200 are allowed"),
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
        (words(symbols=3), "cells.0.plugins.symbols"),
        (words(symbols={"own:A": {"rho": 1}}), "cells.0.plugins.symbols.own:A.rho"),
        (words(symbols={"own:A": {"rho": "\x1b[2J"}}), "cells.0.plugins.symbols.own:A.rho"),
        (words(titles={"drift": ["a"]}), "cells.0.plugins.titles.drift"),
        (words(lower="drift"), "cells.0.plugins.lower"),
        (words(more=1), "unknown name 'more'"),
        (chosen(values=3), "cells.0.tuned.values"),
        (chosen(edges="training.lr"), "cells.0.tuned.edges"),
        (chosen(edges=["algorithm.rho"]), "'algorithm.rho' has no value with a range"),
        (chosen(ranges={}), "'training.lr' has no value with a range"),
        (chosen(score=float("nan")), "cells.0.tuned.score"),
        (chosen(held_out={"fraction": "all", "from": "clients"}), "cells.0.tuned.held_out.fraction"),
        (chosen(stage="two\nlines"), "cells.0.tuned.stage"),
        (chosen(more=1), "unknown name 'more'"),
        (at("tune", to=7), "tune: expected a mapping"),
        (staged("evil"), "tune.name: found 'evil'; sweep/tune is required"),
        (staged("sweep"), "tune.name: found 'sweep'; sweep/tune is required"),
        (at("cells", 0, "plugins", to=[1]), "cells.0.plugins"),
        (at("cells", 0, "search", to={"keys": [1], "select": "x"}), "cells.0.search.keys.0"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_the_sweep_says(change: Change | bytes, message: str, exported: Members, store: Path) -> None:
    pack(store / "evil.zip", rewritten("sweep.json", change)(exported))
    refuse(store, message)


def test_words_of_plug_ins_and_choices_arrive_as_they_were(
    exported: Members, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    symbols = {"own:Skewed": {"strength": "ψ"}}
    given = {"symbols": symbols, "unranked": ["turn"]}
    for change in (words(**given), chosen(), staged("sweep/tune")):
        exported = rewritten("sweep.json", change)(exported)
    import_sweep(pack(tmp_path / "good.zip", exported))
    (found,) = read_stored_sweep("sweep").cells
    assert (found.to_json()["plugins"], found.tuned) == (WORDS | given, CHOICE)
    assert ArchivedPlugins.model_fields.keys() == {field.name for field in fields(PluginLabels)}
    assert read_stored_sweep("sweep/tune").cells == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"name: \x1b[2J", "sweep.yaml: "),
        (b"name: \xe2\x80\xae", "sweep.yaml: "),
        (b"x" * 1_000_001, "sweep.yaml: "),
    ],
)
def test_what_the_file_of_the_sweep_says(text: bytes, message: str, exported: Members, store: Path) -> None:
    """It is text of at most a million characters, none of which steers a terminal; nothing runs it."""
    pack(store / "evil.zip", rewritten("sweep.yaml", text)(exported))
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
        import_([store / "evil.zip"])
    assert str(caught.value) == f"{store / 'evil.zip'}: cell {CELL['hash']}: {message}"


# Environments


def without_environment(members: Members) -> Members:
    return [one for one in members if not one[0].filename.startswith("environments/")]


@pytest.mark.parametrize(
    ("trick", "message"),
    [
        (without_environment, "there is no such member"),
        (rewritten(ENVIRONMENT, at("packages", "torch", to="6.6.6")), "its content has another hash"),
        (rewritten(ENVIRONMENT, at("packages", to=7)), "packages"),
        (rewritten(ENVIRONMENT, at("packages", "torch", to="\x1b[2J")), "packages"),
        (
            rewritten(ENVIRONMENT, lambda document: document.update({str(k): {} for k in range(9999)})),
            "another hash",
        ),
    ],
)
def test_environments(trick: Trick, message: str, exported: Members, store: Path) -> None:
    pack(store / "evil.zip", trick(exported))
    refuse(store, message)


def test_a_tag_that_names_a_path(exported: Members, store: Path) -> None:
    """It is looked up among the members, whose names are checked, and nowhere else."""
    changed = []
    for member, content in without_environment(exported):
        if member.filename == RUN:
            document = json.loads(content)
            document["tags"]["fedray.environment"] = "../../../etc/passwd"
            content = json.dumps(document).encode()
        changed.append((member, content))
    pack(store / "evil.zip", changed)
    refuse(store, "there is no such member")


# Tables


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("clients", b"\xff\xfe", "is not a table of numbers"),
        ("clients", b"", "is not a table of numbers"),
        ("clients", b"\n", "is not a table of numbers"),
        ("clients", b'client,samples,accuracy\n"0,1,2', "is not a table of numbers"),
        ("clients", b"client,samples,accuracy\n0,1", "is not a table of numbers"),
        ("clients", b"client,samples,accuracy\n0,1,\x1b[2J", "is not a table of numbers"),
        ("clients", b"client,samples\n0,1", "'samples']; client, samples, accuracy are required"),
        ("clients", b"client,client,accuracy\n0,1,2", "client, samples, accuracy are required"),
        ("clients", b"client,samples,accuracy\n", "has 0 rows of "),
        ("clients", b"client,samples,accuracy\n0,1,2\n-1,1,2", "line 3: client is -1"),
        ("clients", b"client,samples,accuracy\n0,1.5,2", "line 2: samples is 1.5"),
        ("clients", b"client,samples,accuracy\n0,1e300,2", "line 2: samples is 1e+300"),
        ("clients", b"client,samples,accuracy\n0,1,101", "line 2: accuracy is 101"),
        ("clients", b"client,samples,accuracy\n0,1,nan", "line 2: accuracy is nan"),
        ("clients", b"client,samples,accuracy\n0,1,inf", "line 2: accuracy is inf"),
        ("clients", b"client,samples,accuracy,unseen\n0,1,2,2", "line 2: unseen is 2"),
        ("clients", b"client,samples,accuracy,finetuned_accuracy\n0,1,2,-1", "finetuned_accuracy is -1"),
        ("clients", b"client,samples,accuracy\n3,1,2\n3,1,2", "its column client is [3, 3]; each client once"),
        ("confusion", b"class\n0", "class, predicted_0 are required"),
        ("confusion", b"class,predicted_1\n0,1", "class, predicted_0 are required"),
        ("confusion", b"class,predicted_0,x\n0,1,1", "class, predicted_0, predicted_1 are required"),
        ("confusion", b"class,predicted_0\n0,0.5", "line 2: predicted_0 is 0.5"),
        ("confusion", b"class,predicted_0\n1,1", "its column class is [1]; each class once"),
        ("confusion", b"class,predicted_0\n0,1\n1,1", "its column class is [0, 1]; each class once"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_tables_of_clients_and_classes(file: str, content: bytes, message: str, exported: Members, store: Path) -> None:
    """Reports and figures would compute with them."""
    name = f"{FOLDER}/{file}.csv"
    pack(store / "evil.zip", [*exported, (zipfile.ZipInfo(name), content)])
    refuse(store, f"{name}: ")
    refuse(store, message)


def test_a_later_format_is_named_first(exported: Members, store: Path) -> None:
    """Its members and keys are not known here."""
    later = rewritten("sweep.json", lambda document: document.update({"format": 3, "cells": {}, "more": 1}))
    pack(store / "evil.zip", [(zipfile.ZipInfo("later.bin"), b""), *later(exported)])
    refuse(store, "it was made by a later version of fedray (format 3, this one reads up to 2)")
