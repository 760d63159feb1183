"""Metadata of a deposit: an RO-Crate 1.1, made with the library `rocrate`."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import fedray
from fedray.analysis.deposit.bibtex import FEDRAY, BibEntry, read_papers
from fedray.analysis.deposit.citations import Cited
from fedray.common.errors import UserError, truncate_repr

NAME = "ro-crate-metadata.json"
VERSION = "1.1"
TYPES = {
    ".bib": "application/x-bibtex",
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".tex": "application/x-tex",
    ".yaml": "application/yaml",
}
SPDX = r"[A-Za-z0-9][A-Za-z0-9.+-]*"
LICENCE = re.compile(rf"{SPDX}|https?://\S+")


@dataclass(frozen=True)
class Deposit:
    """Metadata of a deposit.

    Attributes:
        name: of the sweep.
        description: of the sweep; may be empty.
        cited: the components of the sweep.
        files: member -> one line on its content.
        sizes: member -> bytes, as far as they are known.
        span: first start and last end of the runs, in milliseconds since 1970; None without a run.
        licence: an SPDX identifier or an address; empty: not stated.
        authors: names; may be empty.
    """

    name: str
    description: str
    cited: Sequence[Cited]
    files: Mapping[str, str]
    sizes: Mapping[str, int]
    span: tuple[int, int] | None
    licence: str
    authors: Sequence[str]


def refuse_licence(licence: str) -> None:
    """Raise UserError unless a licence is empty, looks like an SPDX identifier, or is an address."""
    if licence and not LICENCE.fullmatch(licence):
        raise UserError(
            f"--licence: found {truncate_repr(licence)}; an SPDX identifier such as CC-BY-4.0 or an address is required"
        )


def make_metadata(deposit: Deposit) -> bytes:
    """Return the content of `ro-crate-metadata.json`. What is not known is left out."""
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

    crate = ROCrate(version=VERSION)

    def add(id: str, kind: str, **properties: Any) -> Any:
        return crate.add(ContextEntity(crate, id, {"@type": kind, **_drop_empty(properties)}))

    def add_licence(licence: str) -> Any:
        if not re.fullmatch(LICENCE, licence):
            return licence
        id = licence if "://" in licence else f"https://spdx.org/licenses/{licence}"
        return add(id, "CreativeWork", name=licence, description=f"The licence {licence}")

    def add_papers(entries: Iterable[BibEntry]) -> list[Any]:
        return [add(f"#{one.key}", "ScholarlyArticle", **_describe_paper(one.fields)) for one in entries]

    papers = {one: add_papers(read_papers(one.paper)) for one in deposit.cited}
    data = [
        add(
            f"#data-{one.name}",
            "Dataset",
            name=one.name,
            license=add_licence(one.licence),
            citation=papers[one],
        )
        for one in deposit.cited
        if one.section == "data"
    ]
    software = add(
        "#fedray",
        "SoftwareApplication",
        name="fedray",
        version=fedray.__version__,
        license=add_licence(FEDRAY.fields["license"]),
    )
    files = {
        name: crate.add_file(
            dest_path=name,
            properties=_drop_empty(
                {
                    "name": name,
                    "description": line,
                    "encodingFormat": TYPES[PurePosixPath(name).suffix],
                    "contentSize": str(deposit.sizes[name]) if name in deposit.sizes else "",
                }
            ),
        )
        for name, line in deposit.files.items()
    }
    runs = crate.add_dataset(
        dest_path="runs/",
        properties={
            "name": "runs",
            "description": "A folder per cell: metrics of every evaluated round, hashes, files",
        },
    )
    begin, end = deposit.span or (None, None)
    action = add(
        "#sweep",
        "CreateAction",
        name=f"fedray sweep {deposit.name}",
        instrument=software,
        object=[*([files["sweep.yaml"]] if "sweep.yaml" in files else []), *data],
        result=[runs, *(file for name, file in files.items() if name.startswith(("tables/", "figures/")))],
        startTime=_format_time(begin),
        endTime=_format_time(end),
    )
    root = crate.root_dataset
    described = {
        "name": f"Results of the sweep {deposit.name}",
        "description": deposit.description or f"Results of a sweep of federated-learning runs, {deposit.name}",
        "datePublished": datetime.now(UTC).date().isoformat(),
        "license": add_licence(deposit.licence),
        "author": [add(f"#author-{k}", "Person", name=name) for k, name in enumerate(deposit.authors, 1)],
        "citation": list({paper.id: paper for found in papers.values() for paper in found}.values()),
        "mentions": [action, *data],
    }
    for key, value in _drop_empty(described).items():
        root[key] = value
    return json.dumps(crate.metadata.generate(), indent=2, ensure_ascii=False).encode()


def _drop_empty(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that are known; a list of one is its element, as RO-Crate recommends."""
    known = {key: value for key, value in properties.items() if value not in ("", None, [])}
    return {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in known.items()}


def _describe_paper(fields: Mapping[str, str]) -> dict[str, str]:
    """Return a paper's properties in words of schema.org; its authors are one text, as BibTeX writes them."""
    venue = fields.get("booktitle") or fields.get("journal") or fields.get("howpublished") or ""
    return {
        "name": fields["title"].strip("{}").replace("\\", ""),
        "author": re.sub("[{}]", "", fields["author"]),
        "datePublished": fields["year"],
        "publisher": venue,
        "identifier": f"https://arxiv.org/abs/{fields['eprint']}" if "eprint" in fields else "",
    }


def _format_time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
