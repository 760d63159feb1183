"""The command line with correct calls; wrong ones are in test_bad_input.py. Each command imports what it needs."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from fedray.cli.main import LAZY, app
from fedray.common.yaml_files import load_yaml
from fedray.datasets import make_data_source
from fedray.datasets.torchvision_sets import CIFAR10
from fedray.sweep.document import get_sweeps_folder, list_sweeps
from fedray.sweep.storage import lock_sweep
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import sheet
from tests.bad_input.case import BASE, RUN
from tests.conftest import Call, each, work_in


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    return work_in(tmp_path, monkeypatch)


def test_dry_run_without_the_data(folder: Path, call: Call) -> None:
    """Cells of a file and of a tune stage are listed; the sweep itself is refused."""
    sweep = {"name": "x", "base": BASE | {"data": "mnist"}, "grid": {"algorithm": ["fedavg", "fedsam"], "seed": [0, 1]}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    code, out, err = call("sweep", "sweep.yaml", "--dry-run")
    cells = ["2  fedavg dirichlet(0.5) s1", "3  fedsam dirichlet(0.5) s0", "4  fedsam dirichlet(0.5) s1"]
    assert (code, out.splitlines()[1:]) == (0, [*cells, "x: 4 cells"])
    assert "whether they can run, is not known without the data:\nfedray: sweep.yaml: data.name: mnist is not in" in err
    sweep["grid"]["runtime.actors"] = [1, 2]  # no part of a cell
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert call("sweep", "sweep.yaml", "--dry-run", "--only", "3").out.splitlines() == [
        "3  fedsam dirichlet(0.5) actors=1 s0",
        "x: 1 cell",
    ]
    assert call("sweep", "sweep.yaml").code == 2
    lines = call("sweep", "methods", "--dry-run").out.splitlines()
    assert [line for line in lines if "/tune" in line] == [f"methods/{block}/tune: 130 cells" for block in range(5)]


@pytest.mark.parametrize("form", [(), ("--dry-run",), ("--dry-run", "--json"), ("--dry-run", "--estimate")])
def test_no_cells_are_chosen_from_a_file_that_tunes(form: tuple[str, ...], folder: Path, call: Call) -> None:
    refused = call("sweep", "methods", "--only", "1", *form).refused
    assert refused == "fedray: --only: the final stage follows from the whole tune stage; run the file whole\n"


def test_dry_run_says_which_rounds_are_averaged(folder: Path, call: Call) -> None:
    """A fifth of 20 rounds is 17 to 20, of 60 the last ten. Personal models are tested in rounds 50 and 60. Round 10 is
    the first test, which is late for 20 rounds."""
    base = BASE | {"evaluation": {"personal": {}}}
    sweep = {"name": "x", "base": base, "grid": {"training.rounds": [20, 60], "seed": [0, 1]}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert (
        "last10_test_accuracy: mean of rounds 17 to 20 in 2 of 4 cells, mean of rounds 51 to 60 in 2 of 4 cells\n"
        "last10_personal_accuracy: round 20 in 2 of 4 cells, round 60 in 2 of 4 cells\n"
        "curves begin in round 10, the first that is tested; evaluation.every: 1 tests every round\n"
    ) in call("sweep", "sweep.yaml", "--dry-run").out
    assert "curves begin" not in call("sweep", "sweep.yaml", "--dry-run", "--set", "evaluation.every=2").done


def test_the_same_sweep_twice_at_once_is_refused(folder: Path, call: Call) -> None:
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "x/y", "base": BASE}))
    with lock_sweep("x/y"):
        assert "x/y: another process is running this sweep (it holds " in call("sweep", "sweep.yaml").refused
    with lock_sweep("x/y"):
        pass  # free again


def test_a_run_shows_personal_and_generic_accuracy_and_that_it_diverged(folder: Path, call: Call) -> None:
    """In the rounds that have them, and in the summary; without `evaluation.personal` neither."""
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN | {"evaluation": {"every": 1}}))
    asked = ("run", "run.yaml", "--no-track", "--set", "evaluation.personal={epochs: 1}")
    out = call(*asked, "--json").done
    found = json.loads(out.splitlines()[-1])
    assert found["generic_accuracy"] == found["test_accuracy"]
    assert {"personal_accuracy", "personal_std", "personal_worst10"} < found.keys()
    lines = call(*asked).out.splitlines()
    assert re.search(r"train loss +PA % +GA %$", lines[0].rstrip())
    first = lines[1].split()
    assert len(first) == 5, "generic accuracy in every evaluated round, personal accuracy in the last"
    assert first[4] == first[1]
    assert lines[2].split()[4:] == [f"{found['personal_accuracy']:.2f}", f"{found['generic_accuracy']:.2f}"]
    assert "PA %" not in call(*asked[:3]).out
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN))
    code, _, err = call("run", "run.yaml", "--no-track", "--set", "training.lr=1e20")
    assert code == 3
    assert re.match(r"fedray: diverged in round 1, client \d: ", err)


def test_a_model_that_cannot_take_the_data_is_refused(folder: Path, call: Call) -> None:
    """Too few outputs, outputs of another kind, and a layer without a bfloat16 kernel, as an LSTM on many CPUs."""
    (folder / "small_model.py").write_text(
        "import torch\nclass Three(torch.nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
        "class Two(Three):\n    def forward(self, x):\n        return super().forward(x), 1\n"
        "class Whole(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(64, 10)\n"
        "    def forward(self, x):\n        if torch.is_autocast_enabled('cpu'):\n"
        "            raise RuntimeError('no kernel')\n        return super().forward(x.flatten(1))\n"
    )
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN | {"model": "small_model:Three"}))
    said = "model.name: small_model:Three gives outputs of shape (1, 3) for 1 sample, the data have 10 classes"
    assert said in call("run", "run.yaml").refused
    err = call("run", "run.yaml", "--set", "model=small_model:Two").refused
    assert err.split("; ")[0] == "fedray: model.name: Two.forward gives a tuple"
    whole = ("run", "run.yaml", "--no-track", "--set", "model=small_model:Whole")
    assert call(*whole).code == 0
    code, _, err = call(*whole, "--set", "training.precision=bf16")
    said = "does not take inputs of shape (1, 8, 8) with training.precision bf16 on this device: no kernel"
    assert (code, err.splitlines()[-1]) == (2, f"fedray: model.name: small_model:Whole {said}")


def test_cluster_files_and_presets_are_written_as_they_are(call: Call) -> None:
    """They have no other door in a wheel."""
    folder, listed = get_sweeps_folder() / "clusters", json.loads(call("list", "clusters", "--json").out)
    assert listed.keys() == {path.name for path in folder.iterdir()} >= {"slurm.sh", "slurm-array.sh", "kuberay.yaml"}
    assert all(text and "\n" not in text for text in listed.values())
    for name in listed:
        assert call("list", "clusters", name).out == (folder / name).read_text(encoding="utf-8")
    table = folder.parent / "fedsam/table2.yaml"
    assert call("list", "sweeps", "fedsam/table2").out == table.read_text(encoding="utf-8").partition("\n")[2]
    assert "did you mean 'slurm.sh'?" in call("list", "clusters", "slurm").refused
    # `fedray list datasets` shows it as the options of `data` that it stands for, in YAML.
    presets = yaml.safe_load(call("list", "datasets", "cifar10").out.split("\npresets:\n")[1])
    given: Any = make_data_source({"name": "npz", "path": "x.npz", **presets["fedacg"]})
    recipe = CIFAR10.recipes["fedacg"]
    assert (given.mean, given.std, given.augment) == (recipe.mean, recipe.std, recipe.augment)
    assert presets["fl_simulator"]["augment"] == [{"flip": True}, {"crop": 4, "fill": "mean", "chance": 0.5}]


@pytest.mark.parametrize("entry", [("algorithms", "fedsam"), ("metrics", "test_loss"), ("sweeps", "quickstart")])
def test_an_entry_as_json_is_its_text_and_the_schema_of_its_options(entry: tuple[str, str], call: Call) -> None:
    """Only what a configuration names has options."""
    told = json.loads(call("list", *entry, "--json").out)
    assert (told["name"], told["text"]) == (entry[1], call("list", *entry).out)
    assert ("schema" in told) == (entry[0] not in ("metrics", "sweeps", "clusters"))
    if entry[1] == "fedsam":
        assert told["schema"]["properties"]["rho"]["default"] == 0.5


def test_the_help_fits_a_terminal_with_19_commands_at_most(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """40 lines of 80 columns; no command's summary breaks."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("--help").out.splitlines()
    assert len(lines) <= 40
    commands = lines[lines.index("Run:") :]
    assert all(re.match(r"  [a-z]+  +\S|[A-Z][a-z]+:$|$", line) for line in commands)
    assert [line for line in commands if line.endswith(":")] == ["Run:", "Look:", "Share:"]
    group: Any = typer.main.get_command(app)
    commands = [group.get_command(None, name) for name in group.list_commands(None)]
    commands = [each for one in commands for each in getattr(one, "commands", {"": one}).values()]
    assert len(commands) <= 19, "extend one of these"
    assert sum(len(command.params) for command in commands) <= 112, "drop one that fewer would miss"


OWN = {"tables": "--best-except", "compare": "--confidence", "sharpness": "--run"}
"""Command -> what its help alone has, or one of few; the others have `--out`."""


@pytest.mark.parametrize("command", LAZY)
def test_each_is_a_script(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", [f"analysis/{command}.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(f"analysis.{command}", run_name="__main__")
    assert OWN.get(command, "--out") in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sweep", "run"])
def test_each_option_is_called_in_a_test(name: str) -> None:
    """An option that a test gives stands in its source, be it `--no-track` for `--track`; pip's do not count."""
    paths = [path for path in Path(__file__).parents[1].rglob("*.py") if path.name != "test_wheel.py"]
    sources = "".join(path.read_text(encoding="utf-8") for path in paths)
    command: Any = typer.main.get_command(app)
    given = [{*one.opts, *one.secondary_opts} for one in command.get_command(None, name).params]
    assert [words for words in given if not any(word in sources for word in words)] == [], "call it in tests/cli"


def test_schema(call: Call) -> None:
    text = call("schema").out
    shipped = (get_sweeps_folder() / "sweep.schema.json").read_text(encoding="utf-8")
    assert shipped == text, "run: fedray schema > sweeps/sweep.schema.json"
    assert len(text.encode()) <= 100_000
    check = jsonschema.Draft7Validator(json.loads(text))
    for name in list_sweeps():
        found = load_yaml(get_sweeps_folder() / f"{name}.yaml")
        if found.keys() & {"name", "algorithm"}:
            first = (get_sweeps_folder() / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
            folder = "../" * name.count("/")
            assert first == f"# yaml-language-server: $schema={folder}sweep.schema.json", name
            assert [f"{name}: {error.json_path}: {error.message[:300]}" for error in check.iter_errors(found)] == []
    sweep: dict[str, Any] = {"name": "x", "base": BASE}
    for mistake in (
        sweep | {"gird": {}},
        RUN | {"training": {"rounds": "many"}},
        RUN | {"algorithm": {"name": "fedavg", "rho": 0.1}},
        sweep | {"base": BASE | {"algorithm": {"name": "fedsam", "rho": -1}}},
        sweep | {"scheduler": {"name": "asha", "gracee": 3}},
        sweep | {"search": {"training.lr": {"logunifrm": [0.1, 1]}}},
        sweep | {"grid": {"seed": []}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            check.validate(mistake)
    for right in (
        RUN,
        RUN | {"data": {"name": "csv", "path": "x", "label": "y"}},
        sweep | {"grid": {"partition": ["iid", {"name": "dirichlet", "alpha": 1}]}},
        sweep | {"grid": {"algorithm.rho": [0.1, 1], "training.adamw.eps": [1e-8], "seed": [0, 1]}},
        sweep | {"grid": {"algorithm": ["fedavg", {"name": "fedsam", "rho": [0.1, 1]}]}},
        sweep | {"grid": {"algorithm": ["fedavg", "mine:Method"], "algorithm.own": [0.1, 1]}},
        {"name": "x", "extends": "tune", "grid": {"algorithm.own": [1]}},
    ):
        check.validate(right)


@each(
    ("status swe", {"sweep"}),
    ("figures sweep --kind cur", {"curves"}),
    ("tables sweep --metric last10_test", {"last10_test_accuracy"}),
    ("tables sweep --paper fedsol/v1", {"fedsol/v1_table1"}),
    ("compare sweep --reference s", set()),  # a row, which only the tables know, not the name of a sweep
    ("sweep fedtoga/table", {"fedtoga/table1", "fedtoga/table2", "fedtoga/table3"}),
    ("run own", {"own.yaml"}),
    ("list algorithms fedto", {"fedtoga"}),
    ("data show dig", {"digits"}),
    ("tables sweep --me", {"--metric"}),
)
def test_shells_complete_names(
    words: str, expected: set[str], project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own.yaml").touch()
    Tracker().open_sweep(sheet("sweep", []))
    monkeypatch.setenv("_FEDRAY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fedray {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        app(prog_name="fedray")
    found = set(capsys.readouterr().out.split())
    assert expected <= found
    assert expected or not found
