"""A deposit holds what its readers need, and is imported and verified."""

import zipfile
from pathlib import Path

import pytest
from fedray.sweep.plan.agreement import refuse_disagreement
from fedray.tracking.archive.merge import import_sweep
from typer.testing import CliRunner

import fedray
from fedray.analysis.data.collect import collect
from fedray.analysis.deposit.export import export_deposit
from fedray.analysis.tables.build import TableOptions
from fedray.cli.main import app
from fedray.common.errors import UserError
from fedray.common.yaml_files import parse_yaml
from fedray.config import RunConfig
from fedray.sweep.driver.verify import verify
from fedray.sweep.file.sweep import Sweep
from fedray.tracking.stored_sweep import read_stored_sweep
from fedray.tracking.tracker import Tracker
from tests import small

RUN = small.sections("fedavg", (5, 2), 4, training={"rounds": 2, "local_epochs": 1})
SWEEP = Sweep.parse({"name": "some/sweep", "description": "Two seeds.", "base": RUN, "grid": {"seed": [0, 1]}})


@pytest.fixture
def here(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose store has a sweep of two finished cells."""
    monkeypatch.chdir(tmp_path)
    use_empty_store(tmp_path / "mlflow.db", empty_store, monkeypatch)
    configs = [RunConfig.parse(RUN | {"seed": seed}) for seed in (0, 1)]
    digest = configs[0].data.load().digest
    for config in configs:
        fedray.simulate(config, track=f"s{config.seed}", progress=False)
    made = [small.list_cell(config, digest) for config in configs]
    Tracker().open_sweep("some/sweep", "Two seeds.", made, file=SWEEP.to_yaml())
    return tmp_path


def use_empty_store(path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")


def test_a_deposit_is_read_imported_and_verified(
    here: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sweep for the whole way, from the command line to the verdicts on the imported cells."""
    call = ["export", "some/sweep", "--deposit", "--licence", "CC-BY-4.0", "--author", "Ada Lovelace"]
    answer = CliRunner().invoke(app, call)
    assert (answer.exit_code, answer.output) == (0, "some/sweep: 2 cells in some-sweep.zip\n")

    with zipfile.ZipFile("some-sweep.zip") as archive:
        texts = {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.startswith(("runs/", "splits/", "environments/"))
        }
    stem = "tables/last10_test_accuracy"
    assert texts.keys() == {
        "README.md", "citations.bib", "sweep.json", "sweep.yaml",
        f"{stem}.csv", f"{stem}.md", f"{stem}.tex", "figures/curves.pdf", "figures/curves.png",
    }  # fmt: skip
    assert Sweep.parse(parse_yaml(texts["sweep.yaml"].decode(), "sweep.yaml")) == SWEEP
    assert b"@inproceedings{mcmahan2017communication," in texts["citations.bib"]
    for said in (
        "fedray verify some/sweep --cells 3",
        f"fedray check {stem}.tex some/sweep",
        "CC-BY-4.0",
        "Ada Lovelace",
        "Two seeds.",
    ):
        assert said in texts["README.md"].decode()

    printed = TableOptions().build(collect("some/sweep")).entries
    use_empty_store(here / "other.db", empty_store, monkeypatch)
    assert import_sweep(Path("some-sweep.zip"), refuse_disagreement) == ("some/sweep", 2, 0)
    assert TableOptions().build(collect("some/sweep")).entries == printed
    assert [verdict.word for verdict in verify("some/sweep", 2)] == ["same", "same"]
    assert read_stored_sweep("some/sweep").file == SWEEP.to_yaml()
    (here / f"{stem}.tex").parent.mkdir()
    (here / f"{stem}.tex").write_bytes(texts[f"{stem}.tex"])
    assert CliRunner().invoke(app, ["check", f"{stem}.tex", "some/sweep"]).exit_code == 0


def test_what_is_not_known_is_left_out(here: Path) -> None:
    """Neither licence nor author is invented; the licence of the digits is not known."""
    export_deposit("some/sweep", Path("a.zip"), metrics=["final_test_accuracy", "rounds_to:50"])
    with zipfile.ZipFile("a.zip") as archive:
        readme = archive.read("README.md").decode()
        assert {"tables/final_test_accuracy.md", "tables/rounds_to-50.md"} <= set(archive.namelist())
    assert "No licence is stated for this deposit." in readme
    assert "| `digits` | not known |" in readme
    assert "Authors" not in readme


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (["some/swep", "--deposit"], "sweep: unknown name 'some/swep'; did you mean 'some/sweep'? valid: some/sweep"),
        (
            ["some/sweep", "--deposit", "--licence", "do what you like"],
            "--licence: found 'do what you like'; an SPDX identifier such as CC-BY-4.0 or an address is required",
        ),
        (["some/sweep", "--licence", "MIT"], "--licence, --author, --metric: go with --deposit"),
        (["some/sweep", "there", "--deposit"], "FILE: there exists and does not end in .zip; choose another name, or"),
        (["some/sweep", "there/a.zip", "--deposit"], "FILE: there/a.zip cannot be written: Not a directory"),
        (["some/sweep", "--deposit", "--metric", "best"], "--metric: unknown name 'best'"),
    ],
)
def test_refusals(call: list[str], line: str, here: Path) -> None:
    (here / "there").touch()
    before = sorted(here.rglob("*"))
    answer = CliRunner().invoke(app, ["export", *call])
    assert isinstance(answer.exception, UserError)
    assert str(answer.exception).startswith(line)
    assert sorted(here.rglob("*")) == before


def test_a_store_without_the_file(here: Path) -> None:
    cells = [one.to_json() for one in read_stored_sweep("some/sweep").cells]
    Tracker().open_sweep("older", "", cells)
    with pytest.raises(UserError, match="older: the store has no file of this sweep; call `fedray sweep FILE` again"):
        export_deposit("older", Path("a.zip"))
    assert not (here / "a.zip").exists()
