"""Pictures in class folders, written here, and what is refused; no picture starts a program."""

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedray
from fedray.common.errors import UserError
from fedray.datasets.dataset import Dataset
from fedray.datasets.image_folders import open_picture
from tests import small
from tests.conftest import each
from tests.datasets.files import load

pytestmark = pytest.mark.usefixtures("nowhere")
COLOURS = {"cat": (10, 20, 30), "dog": (40, 50, 60)}


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def animals(root: Path, per_class: int = 2) -> None:
    for kind, colour in COLOURS.items():
        for i in range(per_class):
            picture(root / kind / f"{i}.png", colour)


def test_a_folder_per_class_in_train_and_test(root: Path) -> None:
    """Labels by sorted names; a wide picture is cut at both sides; grey is 0.299 R + 0.587 G + 0.114 B."""
    animals(root / "own/train")
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 200
    (root / "own/test/dog").mkdir(parents=True)
    Image.fromarray(wide).save(root / "own/test/dog/wide.png")
    data = load("folder", path=str(root / "own"), size=4)
    assert (data.x_train.shape, data.y_train.tolist(), data.y_test.tolist()) == ((4, 3, 4, 4), [0, 0, 1, 1], [1])
    assert [tuple(int(x) for x in image[:, 0, 0]) for image in data.x_train[::2]] == list(COLOURS.values())
    np.testing.assert_array_equal(data.x_test, np.full((1, 3, 4, 4), 200))
    grey = load("folder", path=str(root / "own"), size=4, channels=1)
    assert (grey.x_train.shape[1], int(grey.x_train[0, 0, 0, 0])) == (1, round(0.299 * 10 + 0.587 * 20 + 0.114 * 30))


@pytest.mark.parametrize("options", [{"name": "folder"}, {"name": "folder", "client": "folder"}, {"name": "domains"}])
def test_clients_that_hold_samples_out_need_no_test_set(options: dict[str, Any], root: Path) -> None:
    """24 pictures; two natural clients have 8 and 16 of them."""
    natural = options != {"name": "folder"}
    domains(root / "own", a=4, b=8) if natural else animals(root / "own", 12)
    data = options | {"path": str(root / "own"), "size": 8, "test": {"from": "clients"}}
    result = fedray.simulate(small.sections("fedavg", (2, 2), 1, "natural" if natural else "iid", data=data))
    assert result.problem.split.train.sizes.tolist() == ([6, 12] if natural else [9, 9])
    assert result.problem.split.test.sizes.tolist() == ([2, 4] if natural else [3, 3])


def test_what_systems_leave_is_no_class_no_client_and_no_picture(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("folder", "domains"):
        domains(root / kind, a=5, b=5)
        options = {"path": str(root / kind), "size": 8, "split": 0.2}
        options |= {"client": "folder"} if kind == "folder" else {}
        clean = load(kind, **options)
        for name in ("a/cat/._0.png", "a/cat/.hidden.jpg", "__MACOSX/a/cat/._0.png", "__MACOSX/a/cat/0.png"):
            (root / kind / name).parent.mkdir(parents=True, exist_ok=True)
            (root / kind / name).write_bytes(b"\0\5\x16\7")
        for name in ("a/@eaDir/cat/0.jpg", "a/cat/@eaDir/0.png/SYNO_M.jpg", "lost+found/cat/0.png", "b/#recycle/0.png"):
            picture(root / kind / name, COLOURS["cat"])
        data = load(kind, **options)
        assert data.digest == clean.digest
        assert np.array_equal(data.client_train, clean.client_train)
    assert "is not read" not in caplog.text


@pytest.mark.parametrize("kind", ["folder", "domains"])
def test_what_is_not_read_is_counted(kind: str, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In folders of classes three folders and two files, and a picture next to these folders."""
    domains(root / "own", a=5, b=5)
    for name in ("a/cat/night/0.png", "a/cat/night/1.JPG", "b/dog/1/2/3.png", "a/0.png"):
        picture(root / "own" / name, COLOURS["cat"])
    (root / "own/b/dog/back").symlink_to(root / "own")
    picture(root / "own/a/cat/9.jfif", COLOURS["cat"])
    for name in ("0.avif", "none", "Thumbs.db"):
        (root / "own/a/cat" / name).touch()
    more: dict[str, Any] = {"client": "folder"}
    if kind == "domains":
        more = {"classes": ["dog", "cat"]}
        picture(root / "own/a/bird/0.png", COLOURS["cat"])  # of a class that is not in use
    assert len(load(kind, path=str(root / "own"), size=8, split=0.2, **more).y_train) == 17
    assert f"data.path: {root}/own/a/0.png is not read, as 6 in all: pictures lie in their class" in caplog.text


def test_a_folder_next_to_train_and_test_is_not_read(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for part in ("train", "test", "val"):
        animals(root / "own" / part, 2)
    load("folder", path=str(root / "own"), size=8)
    assert f"data.path: {root}/own/val is not read, as 1 in all: pictures lie in their class" in caplog.text


def domains(root: Path, **pictures: int) -> None:
    """A folder per domain, with so many pictures of each class."""
    for domain, count in pictures.items():
        animals(root / domain, count)


def test_a_client_or_several_per_domain(root: Path) -> None:
    """Domains in the order of their names; a fifth of each class of each domain, so 1 of 5 and 2 of 10. Over two
    clients each, always the same ones."""
    domains(root / "office", webcam=5, amazon=10)
    options = {"path": str(root / "office"), "size": 8, "split": 0.2}
    data, same = load("domains", **options), load("folder", **options, client="folder")
    assert np.bincount(2 * data.client_train + data.y_train).tolist() == [8, 8, 4, 4]
    assert np.bincount(2 * data.client_test + data.y_test).tolist() == [2, 2, 1, 1]
    assert data.x_train[data.y_train == 1][0, :, 0, 0].tolist() == list(COLOURS["dog"])
    np.testing.assert_array_equal(data.y_train, same.y_train)
    several = load("domains", **options, clients_per_domain=2)
    assert np.bincount(several.client_train).tolist() == [8, 8, 4, 4]
    assert np.bincount(several.client_test).tolist() == [2, 2, 1, 1]
    assert load("domains", **options, clients_per_domain=2).digest == several.digest
    assert len({label for label in several.y_train[several.client_train == 0]}) == 2, "dealt at random, not by class"


def domain_net(root: Path) -> None:
    """DomainNet as published: DOMAIN/CLASS/FILE, and for each domain two lists of files and labels next to it."""
    domains(root, clipart=3, sketch=2)
    for domain, count in (("clipart", 3), ("sketch", 2)):
        for part, numbers in (("train", range(1, count)), ("test", range(1))):
            lines = [f"{domain}/{kind}/{i}.png {label}" for label, kind in enumerate(COLOURS) for i in numbers]
            (root / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")


def test_lists_as_domain_net_publishes_them(root: Path) -> None:
    """All classes, or some in an order of their own."""
    domain_net(root / "net")
    data = load("domains", path=str(root / "net"), size=8)
    assert (data.client_train.tolist(), data.y_train.tolist()) == ([0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 1])
    assert data.client_test.tolist() == [0, 0, 1, 1]
    picture(root / "net/clipart/zebra/0.png", (1, 1, 1))
    chosen = load("domains", path=str(root / "net"), size=8, classes=["dog", "cat"])
    assert (chosen.num_classes, chosen.x_train[chosen.y_train == 0][0, :, 0, 0].tolist()) == (2, list(COLOURS["dog"]))


def wrong_domains(root: Path) -> None:
    domains(root / "office", webcam=5, amazon=5)
    domains(root / "less", webcam=5, amazon=5)
    picture(root / "less/amazon/mug/0.png", (0, 0, 0))
    animals(root / "sites/a/train")
    for name in ("net", "halved", "outside", "gone", "twice", "both"):
        domain_net(root / name)
    (root / "halved/sketch_test.txt").unlink()
    (root / "outside/clipart_train.txt").write_text("clipart/cat/1.png 0\n../cat/1.png 0\n")
    (root / "gone/clipart/cat/1.png").unlink()
    with (root / "twice/clipart_train.txt").open("a") as listed:
        listed.write("clipart/cat/1.png 0\n")
    (root / "both/clipart_test.txt").write_text("clipart/cat/1.png 0\nclipart/dog/0.png 1\n")


WRONG_DOMAINS: list[tuple[dict[str, Any], str]] = [
    ({"path": "less", "split": 0.2}, "data.path: domain webcam has no training picture of class mug, which amazon has"),
    ({"path": "office", "split": 0.2, "classes": ["cat", "mug"]}, "data.classes: office/amazon has no class 'mug'"),
    ({"path": "office", "split": 0.2, "classes": ["cat", "cat"]}, "data.classes: found 'cat' twice"),
    ({"path": "office", "split": 0.2, "clients_per_domain": 3}, "found 3; domain amazon has 2 test pictures, and"),
    ({"path": "net", "split": 0.2}, "data.split: found 0.2; net holds lists DOMAIN_train.txt and DOMAIN_test.txt"),
    ({"path": "halved"}, "data.path: halved/sketch_test.txt cannot be read: FileNotFoundError"),
    ({"path": "outside"}, "outside/clipart_train.txt: line 2: found '../cat/1.png 0'; DOMAIN/CLASS/FILE and a label"),
    ({"path": "net", "classes": ["bird", "owl"]}, "data.path: net/clipart_train.txt lists no picture of the `classes`"),
    ({"path": "both"}, "data: domains: both/clipart/cat/1.png is listed twice"),
    ({"path": "gone"}, "gone/clipart/cat/1.png cannot be read: No such file or directory"),
    ({"path": "sites", "split": 0.5}, "sites/a/train holds no picture; DOMAIN/CLASS/*.jpg is required, in `path` or"),
    ({"path": "twice"}, "data: domains: twice/clipart/cat/1.png is listed twice"),
]


def folders(root: Path) -> None:
    for name in ("flat", "parts/train", "parts/test", "more/test", "same/train", "forms/Ko\u0308ln", "forms/K\u00f6ln"):
        animals(root / name)
    picture(root / "more/train/cat/0.png", COLOURS["cat"])
    (root / "none").mkdir()
    (root / "text/cat").mkdir(parents=True)
    (root / "text/cat/0.png").write_text("hello")
    (root / "text/cat/1.png").write_text("hello")
    (root / "same/test").symlink_to("train")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"path": "absent"}, "data.path: absent is not a folder"),
    ({"path": "flat"}, "data.split is required: flat does not hold the folders train and test"),
    ({"path": "parts", "split": 0.5}, "data.split: found 0.5; parts holds the folders train and test"),
    ({"path": "none", "split": 0.5}, "data.path: none holds no folder; a folder per class is required"),
    ({"path": "parts/..", "split": 0.5}, "needs `client: folder`"),
    ({"path": ".", "split": 0.5, "client": "folder"}, "holds no picture; CLIENT/CLASS/*.jpg is required, in `path`"),
    ({"path": "more"}, "data.path: more/test/dog/0.png: no training picture is of that class and client"),
    ({"path": "flat", "split": 0.1}, "data.split: found 0.1, which leaves no picture for the test set"),
    ({"path": "flat", "split": 0.9}, "data.split: found 0.9, which leaves no picture of flat/cat for training"),
    ({"path": "text", "split": 0.5}, "cannot be read: UnidentifiedImageError"),
    ({"path": "forms", "split": 0.5, "client": "folder"}, "clients: found 'Ko\\u0308ln' and 'K\\xf6ln', two spellings"),
]
REFUSED = [*(("folder", *row) for row in WRONG), *(("domains", *row) for row in WRONG_DOMAINS)]


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED)
def test_refused(kind: str, options: dict[str, Any], message: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    {"folder": folders, "domains": wrong_domains}[kind](root)
    with small.refused(message):
        load(kind, **{"size": 4, **options})
    assert not (root / ".fedray-cache").exists()


def same_in_both_parts(root: Path, suffix: str, save: Callable[[Path], None]) -> None:
    for path in ("own/train/a", "own/test/a"):
        (root / path).mkdir(parents=True)
        save(root / path / f"0.{suffix}")


def test_orientation_is_kept(root: Path) -> None:
    """Orientation 6: the first row of the file is the last column of the picture."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    Image.fromarray(grey).save(file, "PNG", exif=exif)
    assert np.asarray(open_picture(file)).tolist() == np.rot90(grey, -1).tolist()


@pytest.mark.parametrize(("suffix", "kind", "mode"), [("png", np.uint16, "I;16"), ("tif", np.float32, "F")])
def test_more_than_8_bits_are_refused(suffix: str, kind: type, mode: str, root: Path) -> None:
    same_in_both_parts(root, suffix, lambda path: Image.fromarray(np.zeros((64, 64), kind)).save(path))
    said = f"0.{suffix} cannot be read: ValueError: its pixels have Pillow's mode {mode}; 8"
    with small.refused(f"data.path: {root}/own/train/a/{said}"):
        load("folder", path=str(root / "own"), size=64)


def test_no_picture_starts_a_program(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow calls `gs` for a file that begins as PostScript, whatever its name is."""
    (root / "gs").write_text(f"#!/bin/sh\ntouch {root}/started\nexit 1\n")
    (root / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(root), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n%%EOF\n"
    wrong = root / "own/train/a/0.png"
    same_in_both_parts(root, "png", lambda path: Image.new("RGB", (8, 8)).save(path))
    wrong.write_bytes(script)
    with pytest.raises(UserError, match=rf"{wrong} cannot be read: UnidentifiedImageError: "):
        load("folder", path=str(root / "own"), size=8)
    assert not (root / "started").exists()


OWN = """age,sex,ward,kind,part
1,m,b,yes,train
3,"f",a,no,train
5,m,b,yes,test
"""
STYLES = ["1,5", "1_000", "5%", "3 kg", "<0.01", "\u0661\u0662", "'5'", "NA", "inf", "m"]


def load_table(content: str | bytes = OWN, **options: Any) -> Dataset:
    Path("own.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    return load("csv", **{"path": "own.csv", "label": "kind", **options})


def test_numbers_are_standardised_by_training_rows_and_texts_become_columns() -> None:
    """Ages -1 and 3: mean 1, deviation 2; then 5 is 2. Sexes f and m; wards a and b are clients 0 and 1."""
    data = load_table(OWN.replace("1,m", "-1,m"), split="part", client="ward", texts=["sex"])
    assert (data.x_train.tolist(), data.x_test.tolist()) == ([[-1, 0, 1], [1, 1, 0]], [[2, 0, 1]])
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([1, 0], [1], 2)
    assert (data.client_train.tolist(), data.client_test.tolist()) == ([1, 0], [1])
    plain = load_table(OWN, split="part", standardise=False, drop=["sex", "ward"])
    assert (plain.x_train.tolist(), plain.x_test.tolist()) == ([[1], [3]], [[5]])


def rows(column: str, values: list[str]) -> str:
    """A table whose column f, kind or who has these values in the training rows, and the first one in a test row."""
    content = "f,kind,who,part\n"
    for i, value in enumerate([values[0], *values]):
        fields = {"f": str(i), "kind": str(i % 2), "who": "0", "part": "train" if i else "test"} | {column: value}
        content += ",".join(f'"{field}"' for field in fields.values()) + "\n"
    return content


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["10", "9", "2"], [2, 1, 0]),
        ([str(2**53 + 1), str(2**53), "9" * 40], [1, 0, 2]),  # as float64 the first two are one number
        (["b", "B", "a"], [2, 0, 1]),
    ],
)
@pytest.mark.parametrize("column", ["who", "kind"])
def test_codes_of_clients_and_classes_are_told_apart(column: str, values: list[str], numbers: list[int]) -> None:
    """Python would read long integers as the nearest float, and 1_1 as 11: clients of which one is a text are texts."""
    data = load_table(rows(column, values), split="part", client="who")
    assert (data.client_train if column == "who" else data.y_train).tolist() == numbers
    data = load_table(rows("who", ["1_1", "11", "1E2", "7", "8"]), split="part", client="who")
    assert data.client_train.tolist() == [2, 0, 1, 3, 4]  # sorted: 11, 1E2, 1_1, 7, 8


@pytest.mark.parametrize("pair", [("05", "5"), ("100", "1E2"), ("11", "\uff11\uff11"), ("Ko\u0308ln", "K\u00f6ln")])
@pytest.mark.parametrize("column", ["who", "kind"])
def test_two_spellings_of_one_client_or_class_are_refused(column: str, pair: tuple[str, str]) -> None:
    message = f"column {column}: found {min(pair)!a} and {max(pair)!a}, two spellings of one; use one of them"
    with pytest.raises(UserError, match=rf"\Adata\.path: own\.csv: {re.escape(message)}\Z"):
        load_table(rows(column, [*pair, "7"]), split="part", client="who")


@pytest.mark.parametrize("value", STYLES)
def test_only_plain_decimals_are_numbers_and_texts_are_named(value: str) -> None:
    """Columns of texts are listed in one line that can be copied."""
    content, options = rows("f", [value, "2", value]), {"split": "part", "drop": ["who"]}
    with pytest.raises(UserError, match=r"row 1, column f: found .*a plain decimal such as -1\.5 or 2e-3 is required"):
        load_table(content, **options)
    assert load_table(content, **options, texts=["f"]).x_train.shape == (3, 2)
    plain = load_table(rows("f", ["1e-05", "-2.5E+1", ".5", "3."]), **options, standardise=False)
    np.testing.assert_allclose(plain.x_train, [[1e-5], [-25], [0.5], [3]], rtol=1e-6)
    with small.refused("own.csv has columns without a number; `texts: ['sex', 'ward']`, or `drop`"):
        load_table(split="part")
    for value in ("1,000", "5%"):
        with small.refused("or `drop`; a number is a plain decimal, such as 1000 for 1,000 and 0.05 for 5%"):
            load_table(rows("f", [value] * 3), **options)


@pytest.mark.parametrize(("mark", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_another_separator_is_named(mark: str, word: str) -> None:
    with pytest.raises(UserError, match=rf"^data\.path: own\.csv has {word} in its header; commas between"):
        load_table(OWN.replace(",", mark), split="part")
    Path("test.csv").write_text(OWN.replace(",", mark))
    with pytest.raises(UserError, match=rf"^data\.test_path: test\.csv has {word} in its header; commas between"):
        load_table(OWN, test_path="test.csv")


def test_a_second_file_is_the_test_set_and_missing_numbers_become_the_mean() -> None:
    """Labels 2 and 10 are the classes 0 and 1: integers sort as numbers."""
    Path("test.csv").write_text("kind,age\n10,7\n")
    data = load_table("age,kind\n1,10\n\n3,2\n", test_path="test.csv")
    assert (data.x_train.tolist(), data.x_test.tolist()) == ([[-1], [1]], [[5]])
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([1, 0], [1])
    # Of 1, nothing and 3 in training: 2; the 8 in the test set does not count.
    content = "age,kind,part\n1,0,train\n,1,train\n3,0,train\n8,1,test\n,1,test\n"
    data = load_table(content, split="part", standardise=False, missing="mean")
    assert (data.x_train.tolist(), data.x_test.tolist()) == ([[1], [2], [3]], [[8], [2]])
    Path("own.csv").write_text(OWN)
    Path("hard").hardlink_to("own.csv")
    with pytest.raises(UserError, match=r"^data\.test_path: .+ is the file of data\.path; other rows are required$"):
        load_table(test_path="hard")


@pytest.mark.parametrize("value", ["4", "0.1"])
def test_a_constant_column_is_zero(value: str) -> None:
    """Ten times 0.1 has a computed deviation of 1.4e-17, by which the 1 of the test row would be divided."""
    rows = "".join(f"{value},{i % 2},train\n" for i in range(10))
    data = load_table(f"age,kind,part\n{rows}1,1,test\n", split="part")
    assert data.x_train.tolist() == [[0]] * 10
    np.testing.assert_allclose(data.x_test, [[1 - float(value)]])


def test_tiny_numbers_stay_apart_and_large_ones_that_float32_merges_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Squares of the first underflow to a deviation of 0; float32 keeps every 128th integer from 2**30."""
    data = load_table(rows("f", ["1e-170", "3e-170"]), split="part", drop=["who"])
    np.testing.assert_allclose(data.x_train, [[-1], [1]])
    load_table(rows("f", [str(2**30 + i) for i in range(5)]), split="part", drop=["who"], standardise=False)
    assert "csv: column f has 5 different numbers; float32 keeps 1 of them, standardise: true" in caplog.text


@pytest.mark.parametrize("clients", [{"test": {"from": "clients"}}, {"split": "part"}])
def test_a_run_with_natural_clients(clients: dict[str, Any]) -> None:
    """Three wards of 40 rows whose class is the sign of the feature: one layer learns it."""
    rng, named = np.random.default_rng(0), {"client": "ward", "drop": ["part"]}
    rows = [(rng.normal(), ward, "test" if i % 4 == 0 else "train") for ward in "abc" for i in range(40)]
    lines = [f"{x},{ward},{part},{int(x > 0)}\n" for x, ward, part in rows]
    load_table("age,ward,part,kind\n" + "".join(lines), **clients, **named)
    data = {"name": "csv", "path": "own.csv", "label": "kind", **named, **clients}
    sections = {"data": data, "training": {"rounds": 5, "batch_size": 10}, "evaluation": {"personal": {}}}
    result = fedray.simulate(small.sections("fedavg", (3, 3), 8, "natural", **sections))
    assert result.problem.split.test.sizes.tolist() == [10, 10, 10]
    assert result.history[-1]["test_accuracy"] > 85


PART, SECOND = {"split": "part"}, {"test_path": "test.csv"}
SEX: dict[str, Any] = PART | {"texts": ["sex"], "drop": ["ward"]}
NAMES = "name,kind,part\n" + "".join(f"n{i},{i % 2},train\n" for i in range(1001)) + "n0,1,test\n"


@each(
    (OWN.encode("utf-16"), {"test": {}}, 'own.csv is not UTF-8; save it so (Excel: "CSV UTF-8")'),
    (OWN, {}, "data: found no test set; one of split, test_path and test: {from: clients} is required"),
    (OWN, {"split": "part", "test": {}}, "data: found split and test; one of split, test_path and test"),
    (OWN, {"split": "part", "label": "kin"}, "data.label: unknown name 'kin'"),
    (OWN, {"split": "sex"}, "row 1, column sex: found 'm'; train or test is required"),
    (OWN.replace("test", "train"), PART, "own.csv has no row for testing"),
    (OWN.replace("3,", ","), SEX, "row 2, column age: found ''; a number is required; data.missing"),
    (OWN.replace("3,", "1e39,"), SEX, "row 2, column age: found '1e39'; a finite number"),
    (OWN.replace("no", ""), SEX, "row 2, column kind: found ''; a value is required"),
    (OWN.replace('"f"', ""), SEX | {"missing": "mean"}, "row 2, column sex: found ''; a text is"),
    (OWN + "7,m\n", PART, "row 4 has 2 fields, the header 5"),
    (OWN.replace("sex", "age"), PART, "own.csv has two columns 'age'"),
    (OWN.replace("sex", ""), PART, "column 2 has no name, as the row numbers that pandas writes; name it"),
    (OWN.replace("age", "Unnamed: 0"), PART, "or leave it out with data.drop: ['Unnamed: 0']"),
    (OWN.replace("5,m", "5,x"), SEX, "column sex has another text in each row"),
    ("age,kind,part\n", PART, "own.csv has no rows below its header"),
    ("kind,part\n1,train\n0,test\n", PART, "own.csv has no column for features"),
    (OWN, {"split": "part", "client": "part"}, "data: the column 'part' is named for two purposes"),
    (OWN, {"split": "part", "drop": ["kind"]}, "data: the column 'kind' is named for two purposes"),
    (OWN + '7,m,b,yes,"test\n', PART, "own.csv: row 4 cannot be read: unexpected end of data; is a quote"),
    ("height,kind\n1,1\n", SECOND, "data.test_path: test.csv: row 2, column kind: found 'NA'; classes are"),
    (NAMES, PART | {"texts": ["name"]}, "column name holds 1001 different texts; allowed are 1000"),
    ("age,kind\n1,1\n", SECOND, "only one of both files has the column 'age'"),
    ("age,kind,part\n1,0.5,train\n1,1,test\n", PART, "found '0.5'; classes are integers, or texts without"),
)
def test_refused_in_one_line(content: str | bytes, options: dict[str, Any], message: str) -> None:
    Path("test.csv").write_text("kind,height\n1,7\nNA,8\n")
    with small.refused(message):
        load_table(content, **options)
