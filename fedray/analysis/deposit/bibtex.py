"""BibTeX of the papers that components declare.

`Component.paper` reads `AUTHORS, TITLE, VENUE YEAR`, followed by anything after a comma, a bracket or a semicolon; a
second paper follows a semicolon. AUTHORS is `Li et al.`, `Li, He and Song` or one name; VENUE may be missing; an
`arXiv NNNN.NNNNN` may follow.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fedray
from fedray.common.errors import FORMS
from fedray.config import COMPONENTS

NAME = r"[^\W\d_][\w.'-]*(?: [\w.'-]+){0,3}?"
PAPER = re.compile(
    rf"(?P<authors>{NAME} et al\.|{NAME}(?:, {NAME})* and {NAME}|{NAME}), (?P<title>.+?), "
    r"(?:(?P<venue>[^,;]*[^\W\d][^,;]*) )?(?P<year>\d{4})(?=[,;( ]|$)"
)
ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")
JOURNALS = ("Proceedings of the IEEE", "Scientific Data", "TMLR", "TNNLS", "TPAMI")
REPORTS = ("Stanford CS 231N", "UCI")
"""Venues of reports and data sets, which have no proceedings."""
SMALL = ("a", "an", "on", "the", "to", "towards")
"""Words with which a title begins and a key does not go on."""
SECTIONS = ("algorithm", "data", "partition", "model")
"""Sections in the order of their citations: methods and data first."""


@dataclass(frozen=True)
class BibEntry:
    """An entry of BibTeX; a field that is not known is missing.

    Attributes:
        key: the citation key, such as `mcmahan2017communication`.
        kind: `article`, `inproceedings`, `misc` or `software`.
        fields: name -> value.
    """

    key: str
    kind: str
    fields: dict[str, str]

    def __str__(self) -> str:
        fields = "".join(f"  {name} = {{{value}}},\n" for name, value in self.fields.items())
        return f"@{self.kind}{{{self.key},\n{fields}}}\n"


FEDRAY = BibEntry(
    "fedray",
    "software",
    {
        "author": "{The fedray authors}",
        "title": "{fedray: Ray-parallel sweeps of federated-learning methods}",
        "version": fedray.__version__,
        "license": "MIT",
    },
)


def read_papers(declared: str) -> Iterator[BibEntry]:
    """Yield the papers of a component's `paper`; texts between semicolons that are not papers are passed over."""
    for text in declared.split(";"):
        if (found := PAPER.match(text.strip())) is not None:
            authors, title, venue, year = found.group("authors", "title", "venue", "year")
            names = re.split(", | and ", authors.removesuffix(" et al."))
            # in braces, so that BibTeX does not take a surname's first word for a first name
            protected = [f"{{{name}}}" if " " in name else name for name in names]
            fields = {
                "author": " and ".join(protected) + " and others" * authors.endswith(" et al."),
                "title": "{" + re.sub("([&%#_])", r"\\\1", title) + "}",
                **_place(venue or ""),
                "year": year,
                **({"eprint": arxiv[1], "archivePrefix": "arXiv"} if (arxiv := ARXIV.search(text)) else {}),
            }
            yield BibEntry(_make_key(names[0], year, title), _find_kind(venue or ""), fields)


def _find_kind(venue: str) -> str:
    if not venue or venue in REPORTS:
        return "misc"
    return "article" if venue in JOURNALS else "inproceedings"


def _place(venue: str) -> dict[str, str]:
    names = {"misc": "howpublished", "article": "journal", "inproceedings": "booktitle"}
    return {names[_find_kind(venue)]: venue} if venue else {}


def _make_key(name: str, year: str, title: str) -> str:
    """Return surname, year and the title's first longer word, in ASCII letters."""
    surname = name.split()[-1]
    word = next(word for word in re.findall(r"\w+", title) if word.lower() not in SMALL)
    plain = unicodedata.normalize("NFKD", f"{surname}{year}{word}").encode("ascii", "ignore").decode()
    return re.sub(r"\W", "", plain).lower()


def format_entries(cited: Iterable[tuple[str, str]]) -> str:
    """Return the entries of components, each paper once, and fedray's own last.

    Args:
        cited: name of a component and its `paper`, in the order of the entries.

    Returns:
        BibTeX; a comment before each entry names the components that declare it.
    """
    entries: dict[str, BibEntry] = {}
    users: dict[str, list[str]] = {}
    silent = []
    for name, declared in cited:
        papers = list(read_papers(declared))
        silent += [] if papers else [name]
        for entry in papers:
            entries.setdefault(entry.key, entry)
            users.setdefault(entry.key, []).append(name)
    texts = [f"% {', '.join(dict.fromkeys(users[key]))}\n{entry}" for key, entry in entries.items()]
    notes = [f"% without a paper: {', '.join(dict.fromkeys(silent))}\n"] if silent else []
    return "\n".join([*texts, *notes, str(FEDRAY)])


@dataclass(frozen=True)
class Cited:
    """A component as its class declares it; a class of your own is not imported and declares nothing.

    Attributes:
        section: the section of a configuration that chooses it.
        name: its name there.
        paper: as `Component.paper` has it.
        licence: of a data set, as its publisher states it; empty if none is known.
    """

    section: str
    name: str
    paper: str
    licence: str = ""


def list_components(configs: Iterable[Mapping[str, Any]]) -> list[Cited]:
    """Return the components of configurations, each once, in the order of SECTIONS.

    Args:
        configs: resolved configurations, as a store holds them.
    """
    found = dict.fromkeys(pair for config in configs for pair in _iter_names(config))
    return [find_component(*pair) for pair in sorted(found, key=lambda pair: SECTIONS.index(pair[0]))]


def find_component(section: str, name: str) -> Cited:
    """Return what a registered class declares, without importing a class of your own."""
    kind = COMPONENTS[section][0].get(name.removesuffix(FORMS))
    return Cited(section, name, getattr(kind, "paper", ""), getattr(kind, "licence", ""))


def _iter_names(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield section and name; a method that `training` adds to others counts as a method."""
    for section in SECTIONS:
        chosen = config.get(section, {})
        yield section, str(chosen["name"] if isinstance(chosen, Mapping) else chosen)
    training = config.get("training", {})
    for key in ("aggregation", "server_step"):
        if training.get(key) in COMPONENTS["algorithm"][0]:
            yield "algorithm", str(training[key])
