"""A sweep exported from one store and imported into another is the same sweep; what no export writes is refused. Each
rule of an archive has a row: none of the tricks reaches a file or the store."""

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from fedray.analysis.data.collect import collect
from fedray.api.results import results
from fedray.cells.cell import Cell
from fedray.cells.status import Status
from fedray.common.errors import UserError
from fedray.components.identity import hash_of
from fedray.tracking import archive as archives
from fedray.tracking.archive import export_sweep, import_sweeps
from fedray.tracking.store import find_records, find_sweeps, open_reader, open_store, read_stored_sweep
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, Outcome, history, sheet, write, write_run
from tests.conftest import Call, each, use_store
from tests.small import config, list_cell
from tests.tracking.proxy import Dying, Killed

Members = list[tuple[zipfile.ZipInfo, bytes]]
"""What an archive holds, in its order."""
Trick = Callable[[Members], Members]
Change = Callable[[dict[str, Any]], object]


def cell(algorithm: dict[str, Any], alpha: float, seed: int) -> dict[str, Any]:
    """A cell as a sweep lists it, with the hash of its identity."""
    run = config(algorithm, model="mlp", partition=alpha, seed=seed)
    return list_cell(run, "0" * 64, f"{run.algorithm.name} {alpha} s{seed}")


CELLS = [cell(algorithm, 0.1, seed) for algorithm in (FEDAVG, SMALL) for seed in (0, 1)]
CELL = CELLS[0]
RUN = f"runs/{CELL['hash']}/run.json"
FOLDER = f"runs/{CELL['hash']}/artifacts"


@pytest.fixture
def use(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Work with the store in folder NAME; it is made empty."""

    def chosen(name: str) -> None:
        new = not (folder := tmp_path / name).exists()
        folder.mkdir(exist_ok=True)
        use_store(folder, monkeypatch, empty_store if new else None)

    return chosen


def run_sweep(missing: int = 1) -> None:
    """Three of four cells have run: two are finished, one has diverged."""
    outcomes: list[Outcome] = [history(60, 70), history(61, 71), ("diverged", 9)]
    write(Tracker(), CELLS, outcomes[: 4 - missing])


def content(name: str = "sweep") -> dict[str, object]:
    """All that a store holds of a sweep but the ids of its runs."""
    sweep, (client, _) = read_stored_sweep(name), open_reader()
    found: dict[str, object] = {"cells": sweep.cells, "description": sweep.description}
    for hash, record in sweep.records.items():
        run = client.get_run(record.run_id)
        metrics = {
            key: [(one.value, one.timestamp, one.step) for one in client.get_metric_history(record.run_id, key)]
            for key in run.data.metrics
        }
        tags = {key: value for key, value in run.data.tags.items() if key != "mlflow.parentRunId"}
        file = client.download_artifacts(record.run_id, "config.yaml", "")
        inputs = [one.dataset.to_dictionary() for one in MlflowClient().get_run(record.run_id).inputs.dataset_inputs]
        info = (run.info.run_name, run.info.status, run.info.start_time, run.info.end_time)
        found[hash] = (*info, inputs, run.data.params, tags, metrics, Path(file).read_text())
    return found


def test_an_imported_sweep_is_the_exported_one_with_its_tables(
    use: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table is made of what `collect` finds. The sweep's file goes along; the store's own stays."""

    def table() -> str:
        return str(collect("sweep").cells.drop(columns=["run_id"]).to_csv())

    use("first")
    run_sweep()
    Tracker().open_sweep(sheet("sweep", CELLS, file="name: sweep  # α\n"))
    before, printed = content(), table()
    assert export_sweep("sweep", tmp_path / "sweep.zip") == 3
    use("second")
    assert import_sweeps(tmp_path / "sweep.zip") == [("sweep", 3, 0, 0)]
    assert content() == before
    assert table() == printed
    assert len(MlflowClient().search_runs([open_store()[1]], "dataset.name = 'digits'")) == 3
    assert import_sweeps(tmp_path / "sweep.zip") == [("sweep", 0, 3, 0)]
    assert content() == before
    assert len(MlflowClient().search_runs([open_store()[1]])) == 4, "three cells and the sweep itself"
    assert read_stored_sweep("sweep").file == "name: sweep  # α\n"
    Tracker().open_sweep(sheet("sweep", CELLS, "what it is about", "name: sweep\n"))
    import_sweeps(tmp_path / "sweep.zip")
    there = read_stored_sweep("sweep")
    assert (there.file, there.description) == ("name: sweep\n", "what it is about")
    client = MlflowClient()
    assert find_sweeps(*open_reader())["sweep"].data.tags["mlflow.note.content"] == "what it is about"
    client.log_text(next(iter(there.records.values())).run_id, "", "plot (1).txt")
    assert export_sweep("sweep", tmp_path / "again.zip") == 3
    assert "is left out: no archive takes a file of this name" in caplog.text


def test_a_killed_import_goes_on(use: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before any of its writes. What it had made of a run counts nowhere: a sweep would go on with it."""
    use("first")
    write(Tracker(), CELLS[:2], [history(60, 70), history(61, 71)])
    expected, file = content(), tmp_path / "sweep.zip"
    export_sweep("sweep", file)
    for writes in range(40):
        use(f"store {writes}")
        killed = Tracker()
        killed.client = dying = Dying(killed.client, writes)  # type: ignore[assignment]
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(archives, "Tracker", lambda killed=killed: killed)
            import_sweeps(file)
        if counted := find_records(*open_store(), [one["hash"] for one in CELLS]):
            assert [content()[cell] for cell in counted] == [expected[cell] for cell in counted]
        import_sweeps(file)
        assert content() == expected
        assert {run.info.status for run in MlflowClient().search_runs([open_store()[1]])} == {"FINISHED"}
        if dying.left:
            return
    raise AssertionError("40 writes were not enough")


def test_what_is_further_here_stays_and_what_is_not_is_replaced(use: Callable[[str], None], tmp_path: Path) -> None:
    """The archive's first cell has finished and its third has diverged; here the first failed, the third finished."""
    use("first")
    run_sweep()
    export_sweep("sweep", tmp_path / "sweep.zip")
    use("second")
    other = cell(SMALL, 0.5, 0)
    write(Tracker(), [CELLS[0], CELLS[2], other], [("failed", []), 80, 1])
    assert import_sweeps(tmp_path / "sweep.zip") == [("sweep", 2, 1, 0)]
    sweep = read_stored_sweep("sweep")
    assert sweep.cells.keys() == {one["hash"] for one in [*CELLS, other]}
    assert {record.ending.status for record in sweep.records.values()} == {Status.FINISHED}
    assert sweep.records[CELLS[2]["hash"]].totals["final_test_accuracy"] == 80
    (parent,) = find_sweeps(*open_reader()).values()
    assert parent.data.tags["fedray.cells"] == "4 finished, 1 missing"


def test_cells_that_have_another_model_here_are_counted(use: Callable[[str], None], tmp_path: Path, call: Call) -> None:
    for name, model in (("first", "a"), ("second", "b")):
        use(name)
        tracker = Tracker()
        tracker.open_sweep(sheet("sweep", CELLS[:2]))
        for one, theta in zip(CELLS[:2], ("same", model), strict=False):
            write_run(tracker, one, history(50), hashes={"theta_sha256": theta}, tags={"fedray.sweep": "sweep"})
        if name == "first":
            export_sweep("sweep", tmp_path / "sweep.zip")
    told = call("import", str(tmp_path / "sweep.zip")).out
    assert told == "sweep: 0 cells added, 2 already present (1 with another model; `fedray verify` runs cells again)\n"


def test_other_settings_under_the_same_labels_are_told_apart(use: Callable[[str], None], tmp_path: Path) -> None:
    """Two people's file of one name, in which a key differs that does not vary: means of seeds stay apart."""
    use("first")
    write(Tracker(), [cell(FEDAVG, 0.5, seed) | {"label": CELLS[seed]["label"]} for seed in (0, 1)], [20, 30])
    export_sweep("sweep", tmp_path / "sweep.zip")
    use("second")
    write(Tracker(), CELLS[:2], [60, 70])
    for added in (2, 0):
        assert import_sweeps(tmp_path / "sweep.zip") == [("sweep", added, 2 - added, 0)]
        found = results("sweep").curves.query("metric == 'test_accuracy'").groupby("setting")["value"].mean()
        assert found.to_dict() == {"fedavg 0.1": 65, "fedavg 0.1 alpha=0.5": 25}
    # A key that only the other one has, such as a norm to clip to.
    first = Cell.from_json(CELLS[0])
    training = {**first.config["training"], "clip_norm": 10}
    other = replace(first, hash="0" * 16, config=first.config | {"training": training})
    assert archives._tell_apart(first, [other]).label == "fedavg 0.1 clip_norm=- s0"


def test_the_tune_stage_goes_along_and_each_split_is_stored_once(use: Callable[[str], None], tmp_path: Path) -> None:
    """Three runs with two distinct splits. Each run has its own again in the other store, which lists both stages."""
    use("first")
    tracker, splits = Tracker(), [b"one", b"two", b"one"]
    for name, cells in (("sweep/tune", CELLS[:1]), ("sweep", CELLS[1:3])):
        parent = tracker.open_sweep(sheet(name, cells))
        for one in cells:
            files = {"partition.npz": splits[CELLS.index(one)], "partition.png": splits[CELLS.index(one)]}
            write_run(tracker, one, history(60, 70), parent=parent, files=files)
    assert export_sweep("sweep", tmp_path / "sweep.zip") == 3
    with zipfile.ZipFile(tmp_path / "sweep.zip") as archive:
        found = {name for name in archive.namelist() if not name.endswith((".json", ".yaml"))}
    assert found == {f"splits/{hashlib.sha256(split).hexdigest()}" for split in splits}
    use("second")
    assert import_sweeps(tmp_path / "sweep.zip") == [("sweep", 3, 0, 0)]
    for name, cells in (("sweep/tune", CELLS[:1]), ("sweep", CELLS[1:3])):
        sweep = read_stored_sweep(name)
        assert [*sweep.cells] == [one["hash"] for one in cells]
        for one in cells:
            file = open_reader()[0].download_artifacts(sweep.records[one["hash"]].run_id, "partition.npz", "")
            assert Path(file).read_bytes() == splits[CELLS.index(one)]
    assert import_sweeps(tmp_path / "sweep.zip") == [("sweep", 0, 3, 0)]


def test_the_blocks_of_a_sweep_are_one_archive(use: Callable[[str], None], tmp_path: Path) -> None:
    """NAME stands for NAME/0, NAME/1, ..., each with its tune stage; runs that are alike share their compression."""
    use("first")
    stages = {"sweep/0/tune": CELLS[:1], "sweep/0": CELLS[1:2], "sweep/1": CELLS[2:], "sweep/x": CELLS[:1]}
    for name, cells in stages.items():
        write(Tracker(), cells, [history(60, 70)] * len(cells), name)
    before = {name: content(name) for name in stages}
    assert export_sweep("sweep", tmp_path / "sweep.zip") == 4
    with zipfile.ZipFile(tmp_path / "sweep.zip") as archive:
        assert archive.namelist() == ["0.zip", "1.zip"]
    alone = [tmp_path / "0.zip", tmp_path / "1.zip"]
    assert [export_sweep(f"sweep/{file.stem}", file) for file in alone] == [2, 2]
    assert (tmp_path / "sweep.zip").stat().st_size < sum(file.stat().st_size for file in alone)
    use("second")
    assert import_sweeps(tmp_path / "sweep.zip") == [("sweep/0", 2, 0, 0), ("sweep/1", 2, 0, 0)]
    del before["sweep/x"]
    assert {name: content(name) for name in before} == before
    assert import_sweeps(tmp_path / "sweep.zip") == [("sweep/0", 0, 2, 0), ("sweep/1", 0, 2, 0)]


@each(
    (["0.zip", "1.zip"], True, "there is no sweep.json in it"),
    (["0.zip", "0.zip"], False, "it holds a block twice"),
    (["+stray", "0.zip"], False, "there is no sweep.json in it"),
    (["0.zip", "../1.zip"], False, "there is no sweep.json in it"),
    ([f"{k}.zip" for k in range(12)], False, "at most 30000 are allowed"),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_of_blocks_that_no_export_writes(
    names: list[str], evil: bool, message: str, exported: Members, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is imported: not the good block either, which stands before the evil one."""
    block = pack(store / "evil.zip", exported).read_bytes()
    bad = pack(store / "evil.zip", without("sweep.json")(exported)).read_bytes()
    monkeypatch.setattr(archives, "UNPACKED", 30_000)
    pack(store / "evil.zip", [(named(name), bad if evil and name == names[-1] else block) for name in names])
    refuse(store, message)


def test_refusals(use: Callable[[str], None], tmp_path: Path) -> None:
    use("first")
    run_sweep()
    (tmp_path / "there").touch()
    with pytest.raises(UserError, match=r"there/a.zip: cannot be written: File exists"):
        export_sweep("sweep", tmp_path / "there/a.zip")
    with pytest.raises(UserError, match=r"no.zip: cannot be read as an archive of fedray: No such file or directory"):
        import_sweeps(tmp_path / "no.zip")
    run = read_stored_sweep("sweep").records[CELL["hash"]].run_id
    shutil.rmtree(files := Path(open_reader()[0].download_artifacts(run, "", "")))
    with pytest.raises(UserError, match=rf"^run {run}: its files in the store are missing: there is no {files}$"):
        export_sweep("sweep", tmp_path / "a.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "there"]


# Archives that no export writes


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Members:
    """An archive of one cell, which has finished with a split, and its sweep's file."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        use_store(folder, patch, empty_store)
        tracker = Tracker()
        parent = tracker.open_sweep(sheet("sweep", [CELL], file="name: sweep\n"))
        write_run(tracker, CELL, history(60, 70), parent=parent, files={"partition.npz": b"split"})
        export_sweep("sweep", folder / "sweep.zip")
    with zipfile.ZipFile(folder / "sweep.zip") as archive:
        return [(member, archive.read(member)) for member in archive.infolist()]


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an empty store, which is still empty afterwards, and nothing but an archive has come into being."""
    (tmp_path / "store").mkdir()
    use_store(tmp_path / "store", monkeypatch, empty_store)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"evil.zip", "store", "store/mlflow.db"}
    assert MlflowClient().get_experiment_by_name("fedray") is None


def pack(file: Path, members: Members) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members:
            archive.writestr(member, content)
    return file


def refuse(store: Path, message: str) -> None:
    """`evil.zip` is refused in one line, which holds the message and nothing that steers a terminal."""
    with pytest.raises(UserError) as caught:
        import_sweeps(store / "evil.zip")
    assert str(caught.value).startswith(f"{store / 'evil.zip'}: cannot be read as an archive of fedray: ")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


def named(name: str, mode: int = 0) -> zipfile.ZipInfo:
    """A member of exactly this name, which ZipInfo's constructor would shorten at a NUL."""
    member = zipfile.ZipInfo("x")
    member.filename = member.orig_filename = name
    member.external_attr = mode << 16
    return member


def put(name: str, content: bytes = b"owned", mode: int = 0) -> Trick:
    return lambda members: [*members, (named(name, mode), content)]


def without(pattern: str) -> Trick:
    return lambda members: [one for one in members if not fnmatch(one[0].filename, pattern)]


def rewritten(name: str, change: Change | bytes) -> Trick:
    """Change what a JSON member says; bytes replace it."""

    def rewrite(members: Members) -> Members:
        found = []
        for member, content in members:
            if member.filename == name and isinstance(change, bytes):
                content = change
            elif member.filename == name:
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


def identified(change: Change) -> Change:
    """Change the identity of the cell, and give it the hash of the changed one."""

    def both(document: dict[str, Any]) -> None:
        listed = document["cells"][0]
        change(listed["identity"])
        listed["hash"] = hash_of(listed["identity"])

    return both


BELOW = ("{outside}/x", "../../../../x", "a\\x", "x\0.png", "/".join(100 * "x"), "\x1b[2Jx")
"""Names in a run's folder. The first has an empty part, and behind it an absolute path."""
NAMES = [*(f"{FOLDER}/{name}" for name in BELOW), "environments/../run.json", f"runs/{16 * 'G'}/run.json"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "is not the name of a file that an archive holds") for name in NAMES),
        *((name, "is there twice") for name in ("sweep.yaml", f"{FOLDER}/Config.yaml")),
        (f"runs/{16 * '0'}/run.json", f"runs/{16 * '0'}: sweep.json lists no such cell"),
    ],
    ids=lambda name: ascii(name)[:40],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_of_members(name: str, message: str, exported: Members, store: Path) -> None:
    pack(store / "evil.zip", put(name.format(outside=store / "outside"))(exported))
    refuse(store, message)


def test_an_archive_of_older_versions_is_taken(exported: Members, tmp_path: Path, use: Callable[[str], None]) -> None:
    """Otherwise the other tests would prove nothing. What older versions wrote for readers is not unpacked."""
    use("here")
    for name in ("README.md", "tables/a.md", "ro-crate-metadata.json", f"environments/{16 * '0'}.json"):
        exported = put(name)(exported)
    exported = put(f"{FOLDER}/plots/round 1.png")(exported)
    assert import_sweeps(pack(tmp_path / "good.zip", exported)) == [("sweep", 1, 0, 0)]
    assert len(list(tmp_path.rglob("plots/round 1.png"))) == 1
    assert not [path for name in ("README.md", "tables", "environments") for path in tmp_path.rglob(name)]


def huge(members: Members) -> Members:
    """A member that unpacks to 300 MB; deflated it has 300 kB."""
    return put(f"{FOLDER}/zeros", bytes(300 << 20))(members)


def patched(offset: int, layout: str, value: int) -> Callable[[Path], None]:
    """Change a number of the entry of the last member in the zip's list of members."""

    def patch(file: Path) -> None:
        data = bytearray(file.read_bytes())
        struct.pack_into(layout, data, data.rindex(b"PK\1\2") + offset, value)
        file.write_bytes(data)

    return patch


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


@each(
    (huge, None, f"'{FOLDER}/zeros' has 314572800 bytes; at most 268435456 are allowed"),
    (put("sweep.json", b" " * (65 << 20)), None, "has 68157440 bytes; at most 67108864 are allowed"),
    (put(f"{FOLDER}/x"), patched(8, "<H", 1), "encrypted"),
    (put(f"{FOLDER}/x"), patched(10, "<H", 99), "compression method is not supported"),
    (put(f"{FOLDER}/x"), patched(42, "<I", 0), f"{FOLDER}/x is damaged"),  # it lies where the first member does
    (put(f"{FOLDER}/x"), flip, f"{FOLDER}/x is damaged"),
    (None, lambda file: file.write_bytes(file.read_bytes()[:-30]), "is not a zip file"),
    (None, grow, "it has more than 4294967296 bytes"),
    (None, replaced(os.mkfifo), "it is not a regular file"),
    (None, replaced(lambda file: file.symlink_to("evil.zip")), "Too many levels of symbolic links"),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_sizes_and_files(
    trick: Trick | None, spoil: Callable[[Path], None] | None, message: str, exported: Members, store: Path
) -> None:
    """The limits: 64 MiB for JSON, 256 MiB for an artefact, 4 GiB for the file; and files that are no archives."""
    members = exported if trick is None else trick(exported)
    if trick is not None and trick is not huge:
        for member, _ in members:
            member.compress_type = zipfile.ZIP_STORED
    pack(store / "evil.zip", members)
    if spoil is not None:
        spoil(store / "evil.zip")
    refuse(store, message)


def test_blocks_share_the_limit_of_an_archive(exported: Members, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of 6 MB, a few kB when packed, with a limit of 10 MB: each alone is within it."""
    monkeypatch.setattr(archives, "UNPACKED", 10_000_000)
    members = put(f"{FOLDER}/zeros", bytes(6_000_000))(exported)
    members[-1][0].compress_type = zipfile.ZIP_DEFLATED
    block = pack(store / "evil.zip", members).read_bytes()
    assert len(block) < 100_000
    pack(store / "evil.zip", [(named(f"{k}.zip"), block) for k in range(2)])
    refuse(store, "the unpacked archive has 12")


DEEP = b'{"format": 1, "name": "x", "description": "", "cells": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
ACCURACY = ("metrics", "test_accuracy")
SPLIT = hashlib.sha256(b"split").hexdigest()


@each(
    (put(f"{FOLDER}/x", b"/etc/passwd", stat.S_IFLNK | 0o777), f"'{FOLDER}/x' is not a regular file"),
    (put(f"{FOLDER}/x", b"/etc/passwd", stat.S_IFIFO | 0o777), f"'{FOLDER}/x' is not a regular file"),
    (without("sweep.json"), "there is no sweep.json in it"),
    (rewritten("sweep.json", DEEP), "recursion limit exceeded"),
    (rewritten("sweep.json", lambda document: document.pop("cells")), "cells is required"),
    (rewritten("sweep.json", at("name", to="../../evil")), "name"),
    (rewritten("sweep.json", at("cells", 0, "identity", "seed", to=5)), f"{CELL['hash']}' is not that of its iden"),
    (rewritten("sweep.json", identified(at("seed", to=5))), f"runs/{CELL['hash']}: sweep.json lists no such cell"),
    (rewritten("sweep.yaml", b"\xff\xfe"), "can't decode byte 0xff"),
    (without(RUN), f"there is no {RUN} in it"),
    (rewritten(RUN, at("status", to="running")), "found running; an archive holds runs that have ended"),
    (rewritten(RUN, at("start", to=10**30)), "start"),
    (rewritten(RUN, at(*ACCURACY, to=[[1.0, 0]])), "metrics.test_accuracy.0"),
    (rewritten(RUN, at("splits", to={"../x": SPLIT})), "found '../x'; partition.npz and partition.png are allowed"),
    (rewritten(RUN, at("splits", to={})), f"splits/{SPLIT}': no run names it"),
    (without("splits/*"), f"splits/{SPLIT}': there is no such member"),
    (rewritten(f"splits/{SPLIT}", b"other"), "its content has another digest"),
)
def test_what_the_members_say(trick: Trick, message: str, exported: Members, store: Path) -> None:
    pack(store / "evil.zip", trick(exported))
    refuse(store, message)


def test_words_of_plug_ins_and_choices_stay(exported: Members, tmp_path: Path, use: Callable[[str], None]) -> None:
    """Tags of MLflow that name runs of another store are left out."""
    use("here")
    words = {"symbols": {"own:Skewed": {"strength": "ψ"}}, "required": {}, "names": {}, "titles": {}, "lower": []}
    words |= {"unranked": ["turn"]}
    tuned = {"stage": "sweep/tune", "values": {"training.lr": 0.1}, "score": 70.5, "edges": []}
    for key, value in (("plugins", words), ("tuned", tuned)):
        exported = rewritten("sweep.json", at("cells", 0, key, to=value))(exported)
    exported = rewritten(f"{FOLDER}/config.yaml", b"data: {name")(exported)  # damaged: the run says nothing of its data
    exported = rewritten("sweep.json", at("tune", to={"name": "sweep/tune", "description": "", "cells": []}))(exported)
    for key, value in (("mlflow.parentRunId", "0" * 32), ("mlflow.log-model.history", "[]")):
        exported = rewritten(RUN, at("tags", key, to=value))(exported)
    import_sweeps(pack(tmp_path / "good.zip", exported))
    sweep = read_stored_sweep("sweep")
    (found,) = sweep.cells.values()
    assert (found.to_json()["plugins"], found.tuned) == (words, tuned)
    assert sweep.records[CELL["hash"]].tags["mlflow.parentRunId"] == find_sweeps(*open_reader())[sweep.name].info.run_id
    assert "mlflow.log-model.history" not in sweep.records[CELL["hash"]].tags
    assert read_stored_sweep("sweep/tune").cells == {}


def test_no_archive_brings_a_parsed_configuration(
    exported: Members, tmp_path: Path, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that was made here has one, pickled; to unpickle a stranger's would do what it says: make a folder."""
    use("here")
    monkeypatch.chdir(tmp_path)
    evil = "cos\nmkdir\n(S'evil'\ntR."
    import_sweeps(pack(tmp_path / "bad.zip", rewritten("sweep.json", at("cells", 0, "packed", to=evil))(exported)))
    (found,) = collect("sweep").cells["spec"]
    assert found.packed == b""
    assert "packed" not in found.to_json()
    assert not (tmp_path / "evil").exists()
    pickle.loads(evil.encode())  # noqa: S301 (the proof that it would)
    assert (tmp_path / "evil").is_dir()


def test_a_later_format_is_named_first(exported: Members, store: Path) -> None:
    """Its members and keys are not known here."""
    later = rewritten("sweep.json", lambda document: document.update({"format": 3, "cells": {}, "more": 1}))
    pack(store / "evil.zip", [(zipfile.ZipInfo("later.bin"), b""), *later(exported)])
    refuse(store, "it was made by a later version of fedray (format 3, this one reads up to 2)")
