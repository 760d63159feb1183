"""The kept results as docs/performance.md shows them.

    python -m tests.benchmarks.table DIRECTORY [docs/performance.md]

Reads every benchmark's JSON (`--out`) and prints the tables, or writes them between the page's two marks.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def truncated_repr(measured: Any) -> str:
    """A ratio with its interval, or what was found."""
    if isinstance(measured, dict):
        return f"{measured['median']:.3g} [{measured['low']:.3g}, {measured['high']:.3g}]"
    return str(measured)


def tables(folder: Path) -> str:
    """One table per benchmark, its command and machine above."""
    parts = []
    for file in sorted(folder.glob("*.json")):
        found = json.loads(file.read_text())
        machine = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
        rows = [
            f"| {line['figure']} | {line['goal']} | {truncated_repr(line['measured'])} | "
            + "; ".join(
                f"{key.replace('_', ' ')} {value}"
                for key, value in line.items()
                if key not in ("figure", "goal", "measured")
            )
            + " |"
            for line in found["figures"]
        ]
        parts.append(
            "\n".join(
                [
                    f"**{found['benchmark']}**: `{found['command']}` ({found['seconds']} s; {machine})",
                    "",
                    "| figure | goal | measured | beside |",
                    "|---|---|---|---|",
                    *rows,
                ]
            )
        )
    return "\n\n".join(parts) or "Not measured yet."


def main(folder: Path, page: Annotated[Path | None, typer.Argument()] = None) -> None:
    """Print, or write into the page."""
    made = tables(folder)
    if page is None:
        print(made)
        return
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    typer.run(main)
