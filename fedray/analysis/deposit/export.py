"""`fedray export NAME FILE --deposit`: a sweep's archive with what its readers need, for a repository such as Zenodo.

In addition to an archive's members it holds the sweep's tables and figures as `fedray tables` and `fedray figures`
print them, BibTeX, and a README that says how to verify. `fedray import` takes it as it is.
"""

import re
import shlex
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import fedray
from fedray.analysis.data.collect import Collected, collect
from fedray.analysis.deposit.bibtex import Cited, format_entries, list_components
from fedray.analysis.plots import search
from fedray.analysis.plots.curves import draw_curves
from fedray.analysis.plots.sensitivity import draw_sensitivity, list_varied
from fedray.analysis.plots.style import save
from fedray.analysis.tables.build import TableOptions
from fedray.analysis.tables.formats import FORMATS, SUFFIXES
from fedray.cells.metric import DEFAULT
from fedray.common.errors import UserError, escape, truncate_repr
from fedray.tracking.archive.pack import export_sweep
from fedray.tracking.store import SWEEP_FILE, read_status
from fedray.tracking.stored_sweep import StoredSweep, read_stored_sweep

LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*|https?://\S+")
LONGEST = 80
"""Maximum number of characters of a figure's name."""


def export_deposit(
    name: str, file: Path, licence: str = "", authors: Sequence[str] = (), metrics: Sequence[str] = (DEFAULT,)
) -> int:
    """Write a sweep's deposit.

    Args:
        name: of a sweep in the store.
        file: the deposit, a zip; it appears whole or not at all.
        licence: of the deposit, an SPDX identifier or an address; empty: not stated.
        authors: of the deposit.
        metrics: one table for each, as `fedray tables --metric` takes them.

    Returns:
        How many cells with a run it holds.

    Raises:
        UserError: as in `export_sweep`, the licence is neither, the store lacks the sweep's file, no cell has finished,
            or a table cannot be made.
    """
    if licence and not LICENCE.fullmatch(licence):
        raise UserError(
            f"--licence: found {truncate_repr(licence)}; an SPDX identifier such as CC-BY-4.0 or an address is required"
        )
    sweep, stored = collect(name), read_stored_sweep(name)
    if not stored.file:
        raise UserError(
            f"{name}: the store has no file of this sweep; call `fedray sweep FILE` again, which keeps it and runs "
            "only cells that have not finished"
        )
    if not (sweep.cells["status"] == "finished").any():
        raise UserError(f"{name}: no cell has finished; there is nothing to deposit")
    printed, commands = _print_tables(sweep, metrics)
    return export_sweep(
        name, file, _add_descriptions(stored, printed | _draw_figures(sweep), commands, licence, authors)
    )


def _print_tables(sweep: Collected, metrics: Sequence[str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return member -> content of each table in each format, and member -> the command that prints it."""
    printed, commands = {}, {}
    for metric in metrics:
        options = TableOptions(metric)
        table = options.build(sweep)
        for format in ("markdown", "latex", "csv"):
            member = f"tables/{_make_name(metric)}{SUFFIXES[format]}"
            commands[member] = options.to_command(sweep.name, {"format": format})
            latex = options.to_command(sweep.name, {"format": "latex"})
            printed[member] = FORMATS[format](replace(table, command=latex)).encode()
    return printed, commands


def _draw_figures(sweep: Collected) -> dict[str, bytes]:
    """Return member -> content of the figures that `fedray figures NAME` draws."""
    drawn = {"curves": draw_curves(sweep)}
    drawn |= {f"sensitivity-{key}": draw_sensitivity(sweep, key, DEFAULT) for key in list_varied(sweep)}
    if sweep.search.keys:
        drawn |= {f"search-{what}": figures for what, figures in search.draw_all(sweep).items()}
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, figures in drawn.items():
            for path in save(figures, Path(folder), kind):
                stem = _make_name(path.stem)
                k = next(k for k in range(len(found) + 1) if f"figures/{stem}{k or ''}{path.suffix}" not in found)
                found[f"figures/{stem}{k or ''}{path.suffix}"] = path.read_bytes()
    return found


def _make_name(text: str) -> str:
    """Return a name that an archive's member may have: ASCII letters, digits and `.=-_`, not at the beginning."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^\w.=-]+", "-", plain).lstrip(".=-")[:LONGEST] or "x"


def _add_descriptions(
    stored: StoredSweep, printed: Mapping[str, bytes], commands: Mapping[str, str], licence: str, authors: Sequence[str]
) -> dict[str, bytes]:
    """Return the deposit's members: what is printed, and what describes it."""
    cited = list_components(cell.config for cell in stored.cells)
    files = dict(_describe_files(stored.name, printed, commands))
    readme = make_readme(stored, cited, files, licence, authors)
    bibtex = format_entries((one.name, one.paper) for one in cited)
    return {"README.md": readme.encode(), "citations.bib": bibtex.encode(), **printed}


def _describe_files(name: str, printed: Mapping[str, bytes], commands: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield member and one line on its content, in the order of the README."""
    yield "README.md", "What this deposit holds, and how to verify it"
    yield SWEEP_FILE, f"The sweep's file: fedray sweep {SWEEP_FILE} runs all cells again"
    yield "sweep.json", "Cells with configuration, identity and hash"
    yield "citations.bib", "BibTeX of methods, data and fedray"
    for member in printed:
        yield member, f"Output of {commands.get(member, shlex.join(['fedray', 'figures', name]))}"


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
