"""The README of a deposit."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

import fedray
from fedray.analysis.deposit.citations import Cited
from fedray.common.errors import escape
from fedray.sweep.file.shipped import WARNING, list_boards
from fedray.tracking.store import read_status
from fedray.tracking.stored_sweep import StoredSweep


def make_readme(
    stored: StoredSweep, cited: Sequence[Cited], files: Mapping[str, str], licence: str, authors: Sequence[str]
) -> str:
    """Return the README, in Markdown.

    Args:
        stored: the sweep.
        cited: its components.
        files: member -> one line on its content.
        licence: of the deposit; empty: not stated.
        authors: of the deposit.
    """
    counts = Counter(str(read_status(run)) for run in stored.runs.values())
    counts["missing"] += len(stored.cells) - len(stored.runs)
    told = ", ".join(f"{n} {status}" for status, n in counts.most_common() if n)
    name, check = shlex.quote(stored.name), next(member for member in files if member.endswith(".tex"))
    lines = [
        f"# Results of the sweep {stored.name}",
        "",
        *([escape(stored.description), ""] if stored.description else []),
        *([f"> {WARNING}", ""] if stored.name in list_boards() else []),
        f"Made with fedray {fedray.__version__}: {len(stored.cells)} cells ({told}), each a configuration with a seed.",
        "",
        "| file | content |",
        "|---|---|",
        *(f"| `{member}` | {escape(line)} |" for member, line in files.items()),
        "| `runs/` | a folder per cell: metrics of every evaluated round, hashes, files |",
        "",
        "## How to verify",
        "",
        f"Install fedray {fedray.__version__}. In an empty folder, with this deposit as `deposit.zip`:",
        "",
        "```sh",
        "fedray import deposit.zip",
        f"fedray tables {name}",
        f"unzip deposit.zip {check} && fedray check {check} {name}",
        f"fedray verify {name} --cells 3",
        "```",
        "",
        "`import` checks every name, size, checksum and hash. `check` says whether the printed table agrees with the",
        "imported runs; `verify` runs some cells again and compares every metric of every round: bit for bit on the",
        "type of CPU that made them, elsewhere within the spread of the seeds.",
        "",
        *_describe_data(cited),
        *_describe_own(cited),
        "## Licence and citations",
        "",
        f"Licence of this deposit: {licence}." if licence else "No licence is stated for this deposit.",
        *([f"Authors: {', '.join(map(escape, authors))}."] if authors else []),
        "`citations.bib` has the papers of methods and data. fedray's own licence is MIT.",
    ]
    return "\n".join(lines) + "\n"


def _describe_data(cited: Sequence[Cited]) -> list[str]:
    """Return a section on the data sets, which a deposit does not hold."""
    rows = [
        f"| `{one.name}` | {one.licence or 'not known'} |"
        for one in cited
        if one.section == "data" and ":" not in one.name
    ]
    if not rows:
        return []
    heading = ["## Data", "", "The data are not part of this deposit; `fedray data fetch NAME` downloads them.", ""]
    return [*heading, "| data set | licence |", "|---|---|", *rows, ""]


def _describe_own(cited: Sequence[Cited]) -> list[str]:
    """Return a section on the authors' own classes, which a deposit does not hold."""
    own = [f"`{one.name}`" for one in cited if ":" in one.name]
    if not own:
        return []
    told = (
        f"Cells name classes of the authors: {', '.join(own)}. `verify` needs their modules, unchanged, in the folder."
    )
    return ["## Classes of the authors", "", told, ""]
