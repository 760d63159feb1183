"""The pages do what they say: their files are written, their commands run, in order, in an empty folder; formulas of
performance.md are what the code holds and sends. Pages that are made from the code, or that cite it, and the API
reference, whose examples run. A fence is `python` or `yaml` with `# NAME` on its first line (a file), `sh` (commands
that are run), or `text` (what cannot be run here: a cluster, a server, an installation)."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from torch import Tensor

import fedray
from benchmarks.gradients import count as count_cells
from benchmarks.gradients import list_names, sum_hours
from docs.generate import algorithms, configuration
from docs.generate.api import write_page
from docs.generate.costs import ROOT, find_sweeps
from fedray.algorithms import ALGORITHMS, algorithm, base
from fedray.analysis import figures
from fedray.cells.metric import KNOWN
from fedray.datasets import DATASETS
from fedray.datasets.medmnist import MEDMNIST
from fedray.engine.cost import measure_cost
from fedray.engine.messages import Broadcast, ClientTask, Reply
from fedray.engine.process import residence
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state
from fedray.partitions import PARTITIONS
from fedray.sweep.document import EXTENDS
from fedray.sweep.sweep import Sweep
from tests import small
from tests.conftest import list_environment
from tests.shipped.test_paper_sweeps import CELLS, NO_TABLES

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tutorial", "concepts", "metrics", "sweep-file", "recipes", "python")


def fences(page: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fence of a page, in order."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield match[1], match[2]


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `fedray` and `python` are those under test, without other settings."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, arguments in (("fedray", " -P -m fedray"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{arguments} "$@"\n')
        (programs / name).chmod(0o755)
    return list_environment() | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(DOCS.parent)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_followed_to_the_letter(page: str, shell: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ran = 0
    for language, content in fences(page):
        name = re.match(r"# (\w+\.(?:py|yaml))\n", content)
        if name is not None:
            (folder / name[1]).write_text(content, encoding="utf-8")
            continue
        if language not in ("sh", "python"):
            continue
        for command in content.splitlines() if language == "sh" else [content]:
            words = ["bash", "-c", command] if language == "sh" else [sys.executable, "-c", command]
            done = subprocess.run(words, cwd=folder, env=shell, capture_output=True, text=True, timeout=900)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran, "a page without a command"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_page_of_methods_has_the_table_of_its_archive(shell: dict[str, str], tmp_path: Path) -> None:
    """All 780 cells, with both tables of `compare` to the letter."""

    def call(*words: str) -> str:
        done = subprocess.run(["fedray", *words], cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=1700)
        assert done.returncode == 0, done.stderr
        return done.stdout

    merged = call("import", str(DOCS.parent / "results" / "methods.zip")).splitlines()
    assert merged == [f"methods/{k}: 156 cells added, 0 already present" for k in range(5)]
    compared = call("compare", "methods", "--reference", "fedavg")
    printed = [line for line in compared.splitlines() if line.startswith("|")]
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert len(printed) == 56
    assert "\n".join(printed[:28]) in page
    assert "\n".join(printed[28:]) in page


def test_every_section_of_a_sweep_file_is_accepted_and_every_key_has_one(tmp_path: Path) -> None:
    """Each fence of the page, on top of the page's first file, with the sections that it needs."""
    first, *others = [yaml.safe_load(content) for language, content in fences("sweep-file") if language == "yaml"]
    search = {"search": {"algorithm.beta": {"uniform": [0, 1]}}}
    stages = search | {"tune": {"seeds": [100]}, "final": {"seeds": [200]}}
    needs = {
        "cases": {"grid": {}}, "search": {"grid": {}}, "samples": search, "searcher": search, "tune": stages,
        "final": stages,
    }  # fmt: skip
    assert len(others) > 15
    for section in others:
        if EXTENDS in section:
            (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(first))
            (tmp_path / "second.yaml").write_text(yaml.safe_dump(section))
            assert Sweep.load(tmp_path / "second.yaml").name == section["name"]
            continue
        needed = {key: value for name in section for key, value in needs.get(name, {}).items()}
        Sweep.model_validate(first | needed | section)
    headings = re.findall(r"^## `(\w+)`$", (DOCS / "sweep-file.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) == {*Sweep.model_fields, EXTENDS}


def test_every_page_is_in_the_navigation_its_links_lead_somewhere_and_its_yaml_can_be_read() -> None:
    for page in DOCS.glob("*.md"):
        for language, content in fences(page.stem):
            if language == "yaml":
                assert isinstance(yaml.safe_load(content), dict), f"{page.name}: {content}"
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http", "#", "mailto")):
                assert (DOCS / target.partition("#")[0]).exists(), f"{page.name}: {target}"
                assert not target.startswith(".."), f"{page.name}: {target} is not part of the site"
    listed = set(re.findall(r'"([\w-]+\.md)"', (DOCS.parent / "zensical.toml").read_text(encoding="utf-8")))
    pages = {page.name for page in DOCS.glob("*.md")} - {"api.md"}  # which `make docs` writes
    assert listed - {"api.md"} == pages
    start = (DOCS / "index.md").read_text(encoding="utf-8")
    assert listed - {"api.md"} == {"index.md", *re.findall(r"\(([\w-]+\.md)\)", start)}


def test_what_can_be_chosen_and_measured_is_explained() -> None:
    """Sections have one text for their family: MedMNIST's sets, held-out samples, the clients' training samples."""
    text = (DOCS / "datasets.md").read_text(encoding="utf-8")
    names = {*PARTITIONS, *DATASETS} - {kind.name for kind in MEDMNIST} - {"arrays"}  # of Python alone
    assert {name for name in names if f"`{name}" not in text} == set(), "give it a row in docs/datasets.md"
    text = "".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ("metrics", "analysis"))
    families = "validation_|personal_train_(?!acc)|seconds$"
    metrics = {name for name in KNOWN if not re.match(families, name)}
    assert {name for name in metrics if f"`{name}`" not in text} == set(), "say in docs/metrics.md what it is"
    assert [kind for kind in figures.KINDS if f"--kind {kind}" not in text] == [], "list it in docs/analysis.md"


def test_the_faults_that_the_page_lists_are_tested_where_it_says() -> None:
    """Each file and name is there; a row without * is of `make test-faults`, which runs what is marked `faults`."""
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ") and "`tests/" in line]
    assert len(rows) > 20
    for row in rows:
        for word in re.findall(r"`([^`]+)`", row):
            if word.startswith("tests/"):
                source = (DOCS.parent / word).read_text(encoding="utf-8")
                assert "*" in row or "pytest.mark.faults" in source, row
            else:
                assert word.strip(".") in source, row


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/decisions.md"])
def test_every_file_of_the_project_that_is_named_exists(page: str) -> None:
    """A path begins at the top or in `fedray/`; without a folder it is a file of yours."""
    named = re.findall(r"`([\w.]+/[\w./]+\.(?:py|yaml|json|toml|csv|md))`", (DOCS.parent / page).read_text("utf-8"))
    missing = [path for path in named if not any((DOCS.parent / top / path).exists() for top in ("", "fedray", "docs"))]
    assert not missing, page


PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
NO_ROW = {"fedsam/search", "fedsol/search", "fedtoga/search", "fedgela/pcdd_smoke", "fedsol/mnist_causes"}
"""Searches and comparisons of ours."""


def sweeps(text: str) -> set[str]:
    """`fedsam/table2`, `table4` names two: a name without a folder is in the folder named before it."""
    found, folder = set(), ""
    for given, name in re.findall(r"`(?:(fed\w+)/)?((?:table|figure)\d+b?|[a-z]\w+)`", text):
        folder = given or folder
        if given or re.match(r"(table|figure)\d", name):
            found.add(f"{folder}/{name}")
    return found


COSTS = re.findall(r"^\| (\S+) \| (\d)x \| (\d)x \| (\d) \| (\d) \| (\d) \|$", PAGE, re.M)


@pytest.mark.parametrize("row", COSTS, ids=[row[0] for row in COSTS])
def test_costs_in_fedtogas_convention_are_the_measured_ones(row: tuple[str, ...]) -> None:
    """Storage is 1 + the client's state, communication its uploads, except for the variates of FedLESAM-S."""
    method, (storage, communication, down, up, kept) = row[0], map(int, row[1:])
    found = measure_cost(algorithm({"name": method.lower()}))
    assert [round(x, 1) for x in (found.down, found.up, found.client)] == [down, up, kept]
    assert storage == 1 + kept
    assert communication == up - (method == "FedLESAM-S")


def test_every_sweep_is_named_and_exists() -> None:
    named = set().union(*(sweeps(row) for row in PAGE.splitlines() if row.startswith("|")))
    commands = set(re.findall(r"fedray (?:tables|figures|compare|sharpness) (fed\w+/\w+)", PAGE))
    assert named | commands <= set(CELLS) | NO_TABLES
    assert named | commands | NO_ROW >= set(CELLS) | NO_TABLES


PERFORMANCE = " ".join((DOCS / "performance.md").read_text().split())
P = 64 * 12 + 12 + 12 * 10 + 10
METHODS = {"fedavg": (0, 0, 0, 1), "scaffold": (1, 1, 1, 2), "fedtoga": (1, 2, 1, 3), "fedlada": (0, 2, 2, 4)}
"""Method -> k, v, m, u. SCAFFOLD: c_i; c; c; the update and the change of c_i. FedTOGA: H_i; h, Δ; Δ; three sums.
FedLADA: nothing; Δ, v; both; the update, Δ and v, whose sum is wide."""


class Watched(InlineBackend):
    """Keeps what it received and returned."""

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        self.broadcast, self.parts = broadcast, super().train(broadcast, tasks)
        return self.parts


def count(tensors: Sequence[Tensor]) -> int:
    """Bytes of vectors of P numbers."""
    return sum(v.nbytes for v in tensors if v.numel() == P)


@pytest.mark.parametrize("algorithm", METHODS)
def test_memory_and_bytes_of_a_round(algorithm: str) -> None:
    """Two rounds of 3 of 6 clients, Dirichlet(0.3), an MLP of P parameters."""
    (k, v, m, u), backend, training = METHODS[algorithm], Watched(), {"rounds": 2, "batch_size": 16}
    running = Simulation(small.problem(algorithm, (6, 3), 12, 0.3, training=training), backend)
    running.step()
    running.step()
    assert "| to each node, per round | 4 P (1 + m): the broadcast |" in PERFORMANCE
    assert count([backend.broadcast.theta, *backend.broadcast.message.values()]) == 4 * P * (1 + m)
    assert "8 P u A while sums arrive" in PERFORMANCE
    assert count([s for part in backend.parts for s in part.sums.values()]) == 8 * P * u * 1
    assert "4 P (1 + v + m) for the server" in PERFORMANCE
    assert count([running.state.theta, *running.state.server.values()]) == 4 * P * (1 + v)
    assert "S = 4 k P is a client's state" in PERFORMANCE
    states = [load_state(state) for state in running.state.clients.values()]
    assert [count(list(state.values())) for state in states] == [4 * k * P] * (len(states) if k else 0)
    assert len(states) == (len({*running.draw_cohort(0), *running.draw_cohort(1)}) if k else 0)


def test_the_limit_is_that_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 f G with f = 1/4 and G = 80 GB: 4 GB."""
    assert "Σ (n_i d) + S N_s, at most 0.2 f G" in PERFORMANCE
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1, 80 * 10**9))
    assert residence.limit_memory(0.25) == 4 * 10**9


@pytest.mark.parametrize("made", [algorithms, configuration])
def test_a_page_of_the_code_is_current(made: ModuleType) -> None:
    name = made.__name__.rpartition(".")[2]
    written = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert written == made.page(), f"run: python -m docs.generate.{name} > docs/{name}.md"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_is_described(name: str) -> None:
    """A paper, a one-line idea, a docstring of its own that begins with the local step, a meaning for every option."""
    kind = ALGORITHMS[name]
    assert kind.paper
    assert kind.idea
    assert "\n" not in kind.idea
    assert "q = " in (kind.__dict__.get("__doc__") or "").partition("\n\n")[0]
    assert all(field.description for field in kind.model_fields.values())


@pytest.mark.slow
def test_every_sweep_has_its_cells_and_a_cost() -> None:
    """Cells as they are counted against the papers; only LEAF's data (table 11) have no published size."""
    assert (set(list_names()), {name: count_cells(name)[0] for name in CELLS}) == (set(CELLS) | NO_TABLES, CELLS)
    assert [name for name in list_names() if sum_hours(name) is None] == ["fedgela/table11"]
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| `fed\w+/", line)]
    assert {name for row in rows for name in find_sweeps(row[1])} == set(list_names())
    for row in rows:
        if len(names := find_sweeps(row[1])) == 1:
            cells, seeds = map(int, row[3].split(" x "))
            assert cells * seeds == count_cells(names[0])[0], row[1]


DISCREPANCIES = ROOT / "docs" / "discrepancies.md"
WRITE = "write `- **D-NUMBER, ...` into docs/discrepancies.md (no command does), or correct the citation"
FOLDERS = {"fedray": ".py", "tests": ".py", "docs": ".md", "analysis": ".py", "sweeps": ".yaml"}


def citations(text: str) -> set[tuple[int, str]]:
    """Every number named, `D-11b` as (11, "b"), and every number of a range written with two dots."""
    found = re.findall(r"\bD-(\d+)([a-f]?)\b(?:\.\.D-(\d+)\b)?", text)
    ranges = ((int(first), letter, int(last or first)) for first, letter, last in found)
    return {(n, letter if n == first else "") for first, letter, last in ranges for n in range(first, last + 1)}


def test_every_number_cited_is_defined_once_and_in_order() -> None:
    page = DISCREPANCIES.read_text(encoding="utf-8")
    defined = [(int(n), letter) for n, letter in re.findall(r"^- \*\*D-(\d+)([a-f]?),", page, re.M)]
    assert defined == sorted(set(defined)), "sort docs/discrepancies.md by number, each once; it is written by hand"
    assert len(defined) > 30
    files = [path for folder, suffix in FOLDERS.items() for path in (ROOT / folder).rglob(f"*{suffix}")]
    for path in (ROOT / "README.md", *files):
        assert citations(path.read_text(encoding="utf-8")) <= set(defined), f"{path}: {WRITE}"


EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_public_name_is_described_by_an_example() -> None:
    text = write_page()
    for name in {*fedray.__all__, *base.__all__} - {"__version__"}:
        section = text.split(f"### `{name}`\n", 1)[1].split("\n### ", 1)[0]
        assert not section.lstrip().startswith("```pycon"), f"{name} has no sentence"
        assert EXAMPLE.search(section), f"{name} has no example"


@pytest.mark.slow
def test_examples(tmp_path: Path) -> None:
    """All examples in one process, in the page's order; nothing but what they show is printed."""
    (tmp_path / "examples.txt").write_text("\n".join(EXAMPLE.findall(write_page())), encoding="utf-8")
    doctest = [sys.executable, "-m", "doctest", "-o", "ELLIPSIS", "examples.txt"]
    out = subprocess.run(doctest, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert (out.returncode, out.stdout) == (0, ""), out.stdout + out.stderr
