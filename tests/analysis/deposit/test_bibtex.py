"""BibTeX of what the classes declare; nothing is invented."""

from pathlib import Path

import pytest
import yaml

from fedray.analysis.deposit.bibtex import (
    FEDRAY,
    SECTIONS,
    find_component,
    format_entries,
    list_components,
    read_papers,
)
from fedray.config import COMPONENTS

LEAF = "Caldas et al., LEAF: a benchmark for federated settings, 2019, arXiv 1812.01097"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (
            "McMahan et al., Communication-efficient learning, AISTATS 2017, algorithm 1",
            [
                "@inproceedings{mcmahan2017communication,\n  author = {McMahan and others},\n"
                "  title = {{Communication-efficient learning}},\n  booktitle = {AISTATS},\n  year = {2017},\n}\n"
            ],
        ),
        (  # no venue; the surname of two words is protected, the key is its last word
            "van Schaik and Li, The one, or the other: 2 ways, 2020, arXiv 2008.03606 (lite)",
            [
                "@misc{schaik2020one,\n  author = {{van Schaik} and Li},\n"
                "  title = {{The one, or the other: 2 ways}},\n  year = {2020},\n"
                "  eprint = {2008.03606},\n  archivePrefix = {arXiv},\n}\n"
            ],
        ),
        (  # a journal, one author, then a remark
            "Müller, On data, Scientific Data 2023; as in FedSOL's code",
            [
                "@article{muller2023data,\n  author = {Müller},\n  title = {{On data}},\n"
                "  journal = {Scientific Data},\n  year = {2023},\n}\n"
            ],
        ),
        (  # a title with a letter that LaTeX reads
            "Li et al., One & two, ICML 2021",
            [
                "@inproceedings{li2021one,\n  author = {Li and others},\n  title = {{One \\& two}},\n"
                "  booktitle = {ICML},\n  year = {2021},\n}\n"
            ],
        ),
        ("FL-Simulator's code, as in FedTOGA", []),
        ("", []),
    ],
)
def test_an_entry_has_what_is_declared_and_no_more(declared: str, expected: list[str]) -> None:
    assert [str(entry) for entry in read_papers(declared)] == expected


def test_every_method_and_every_published_data_set_can_be_cited() -> None:
    """The sets without a paper are made by fedray or are yours."""
    methods = COMPONENTS["algorithm"][0]
    assert [name for name, kind in methods.items() if not list(read_papers(kind.paper))] == []
    own = {"arrays", "csv", "domains", "folder", "npz", "synthetic", "synthetic_text"}
    assert {name for name, kind in COMPONENTS["data"][0].items() if not list(read_papers(kind.paper))} - own == set()


def test_a_key_stands_for_one_paper() -> None:
    found = {}
    for section in SECTIONS:
        for kind in COMPONENTS[section][0].values():
            for entry in read_papers(kind.paper):
                assert found.setdefault(entry.key, entry) == entry


def test_a_paper_of_several_components_is_printed_once() -> None:
    text = format_entries([("fedswa", LEAF), ("femnist", f"Li et al., One, ICML 2020; {LEAF}"), ("mine:Class", "")])
    assert text.startswith("% fedswa, femnist\n@misc{caldas2019leaf,")
    assert text.count("caldas2019leaf") == 1
    assert "% femnist\n@inproceedings{li2020one," in text
    assert "% without a paper: mine:Class\n" in text
    assert text.endswith(str(FEDRAY))


def test_fedrays_own_entry_agrees_with_the_citation_file() -> None:
    written = yaml.safe_load((Path(__file__).parents[3] / "CITATION.cff").read_text())
    assert FEDRAY.fields == {
        "author": f"{{{written['authors'][0]['name']}}}",
        "title": f"{{{written['title']}}}",
        "version": str(written["version"]),
        "license": written["license"],
    }


def test_components_of_configurations_each_once_and_never_imported() -> None:
    """A class of one's own has no paper here: its module would have to be imported. FedExP comes with `training`."""
    config = {
        "algorithm": {"name": "mine:Class"},
        "data": {"name": "mnist"},
        "partition": "iid",
        "model": {"name": "mlp"},
        "training": {"server_step": "fedexp", "aggregation": "uniform"},
    }
    found = list_components([config, config])
    assert [(one.section, one.name) for one in found] == [
        ("algorithm", "mine:Class"),
        ("algorithm", "fedexp"),
        ("data", "mnist"),
        ("partition", "iid"),
        ("model", "mlp"),
    ]
    assert (found[0].paper, found[2].licence) == ("", "CC-BY-SA-3.0")
    assert find_component("data", "dermamnist").licence == "CC-BY-NC-4.0", "the others of MedMNIST: CC-BY-4.0"
    assert find_component("data", "cifar10").licence == "", "its publisher states none"
