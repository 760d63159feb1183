"""Archives of strangers: each row of a table is a trick, and none of them reaches a file or the store."""

import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedray.tracking.archive import check as archive_check
from fedray.tracking.archive.merge import import_sweep
from tests.tracking.archive.tricks import FOLDER, RUN, Members, Trick, pack, refuse


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
        ("environments/../run.json", NAME),
        ("environments/x.json", NAME),
        (f"environments/{16 * '0'}.json", f"'environments/{16 * '0'}.json': no run names it"),
        ("runs/../run.json", NAME),
        ("runs/../../x/run.json", NAME),
        ("runs/" + 16 * "G" + "/run.json", NAME),
        ("run.json", NAME),
        ("", NAME),
        ("tables/../x.md", NAME),
        ("tables/../../x.md", NAME),
        ("tables/{outside}/x.md", NAME),
        ("tables/a/b.md", NAME),
        ("tables/.hidden.md", NAME),
        ("tables/x.md\n", NAME),
        ("tables/x.md/", NAME),
        ("tables/x.html", NAME),
        ("tables/" + 200 * "x" + ".md", NAME),
        ("tables/x\0.md", NAME),
        ("figures/x.svg", NAME),
        ("figures/\u202egnp.png", NAME),
        ("figures/\x1b[2Jx.png", NAME),
        ("Readme.md", NAME),
        ("README.md.exe", NAME),
        ("x/README.md", NAME),
        ("ro-crate-metadata.jsonld", NAME),
        ("ro-crate-preview.html", NAME),
        ("sweep.yml", NAME),
        ("README.md/x.md", NAME),
        ("README.md", "is there twice"),
        ("tables/a.md", "is there twice"),
        ("sweep.yaml", "is there twice"),
        (RUN, "is there twice"),
        ("sweep.json", "is there twice"),
        ("Tables/a.md", NAME),
        ("tables/A.md", "is there twice"),
        (f"{FOLDER}/Config.yaml", "is there twice"),
        (f"{FOLDER}/aux", NAME),
        (f"{FOLDER}/plots/Con.png", NAME),
        (f"{FOLDER}/lpt1.tar.gz", NAME),
        (f"{FOLDER}/nul/x.png", NAME),
        (f"{FOLDER}/x.", NAME),
        (f"{FOLDER}/x ", NAME),
        (f"{FOLDER}/a./x", NAME),
        ("tables/prn.md", NAME),
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
    """Otherwise the other tests would prove nothing. A deposit of fedray 0.2 also has RO-Crate metadata."""
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    members = put("ro-crate-metadata.json")(put(f"{FOLDER}/plots/round 1.png")(put(f"{FOLDER}/console")(exported)))
    assert import_sweep(pack(tmp_path / "good.zip", members)) == ("sweep", 1, 0)
    assert len(list(tmp_path.rglob("plots/round 1.png"))) == 1
    for_readers = ("README.md", "tables", "ro-crate-metadata.json")
    assert not [path for name in for_readers for path in tmp_path.rglob(name)], "members for readers are not unpacked"


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
        (put(f"{FOLDER}/x"), patched(24, "<I", 3 << 30), "has 3221225472 bytes; at most 268435456 are allowed"),
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
