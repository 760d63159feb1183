"""Write the tables and the chart of docs/performance.md from the files in benchmarks/results.

    python -m benchmarks.table

A benchmark's `--out` writes one such file. If several contain a figure, the newest counts.
"""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.__main__ import PARTS
from benchmarks.gpu_day.parts import LATE

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
CHART = ROOT / "docs" / "images" / "performance.png"

ROWS = (
    ("time of a round, few large clients (w2): fedray / plain PyTorch", "overhead w2", "fedray / floor"),
    ("time of a round, many small clients (w1): fedray / plain PyTorch", "overhead w1", "fedray / floor"),
    ("time of a round, a tiny model (w0): fedray / plain PyTorch", "overhead w0", "fedray / floor"),
    ("time of a round, many small clients (w1): fedray / Flower", "overhead w1", "fedray / flower"),
    ("time of a round, a tiny model (w0): fedray / Flower", "overhead w0", "fedray / flower"),
    ("time of a round, many small clients (w1): fedray / pfl-research", "overhead w1", "fedray / pfl"),
    (
        "memory, many small clients (w1): fedray / plain PyTorch",
        "overhead w1",
        "memory of the processes that train, fedray / floor, PSS",
    ),
    (
        "images per second of LeNet: bf16 / fp32, same layout",
        "precision",
        "samples/s of bf16 / fp32 in PyTorch's layout, LeNet",
    ),
    (
        "time of a round: 1,000,000 clients / 1,000 clients",
        "scale",
        "round with 1,000,000 clients / 1,000, fedavg",
    ),
    (
        "share of two cores that trains in a sweep of 100 cells of 1 s",
        "sweep overhead, 100 cells of 1 s",
        "useful work / (2 cores x wall time)",
    ),
)
"""Question, benchmark and figure of each row of the first table."""
WORKLOADS = {"w2": "w2: few large clients", "w1": "w1: many small clients", "w0": "w0: a tiny model"}
SYSTEMS = {"fedray": "#0072b2", "pfl": "#7f7f7f", "flower": "#d55e00"}
NAMES = ("fedray", "pfl-research", "Flower")


Run = dict[str, Any]
"""One file of results, with its name under `file`: a benchmark run once."""


def load_runs(folder: Path = RESULTS) -> list[Run]:
    """Return all runs, the oldest first."""
    files = (file for file in sorted(folder.glob("*.json")) if file.name != "gradients.json")  # docs.generate.costs'
    runs = [json.loads(file.read_text()) | {"file": file.name} for file in files]
    return sorted(runs, key=lambda run: run["machine"]["date"])


def find_newest(runs: list[Run], benchmark: str, *figures: str) -> tuple[Run, list[dict[str, Any]]]:
    """Return the newest run of a benchmark that holds all of these figures, and the figures.

    Raises:
        LookupError: there is none.
    """
    for run in reversed(runs):
        found = {figure["figure"]: figure for figure in run["figures"]}
        if run["benchmark"] == benchmark and found.keys() >= set(figures):
            return run, [found[name] for name in figures]
    raise LookupError(f"no run of {benchmark!r} holds {', '.join(map(repr, figures))}")


def format_measured(measured: Any) -> str:
    """Write a ratio with its interval, or any other value as it is."""
    if isinstance(measured, dict):
        return f"{measured['median']:.3g} [{measured['low']:.3g}, {measured['high']:.3g}]"
    return f"{measured:.3g}" if isinstance(measured, float) else str(measured)


def is_met(figure: dict[str, Any]) -> bool | None:
    """Compare a figure with its goal (`<= 1.05`, `>= 2.5`, `<= 1/20`, `< 1, the same layout`); None without a goal."""
    goal = re.match(r"(<=|<|>=) .*?(1/)?([\d.]+)(,.*)?$", figure["goal"])
    measured = figure["measured"]
    if goal is None or isinstance(measured, str):  # such as "not measured: ..."
        return None
    value = measured["median"] if isinstance(measured, dict) else measured
    limit = 1 / float(goal[3]) if goal[2] else float(goal[3])
    return bool({"<=": value <= limit, "<": value < limit, ">=": value >= limit}[goal[1]])


def cite(run: Run) -> str:
    """Name a run's file in a page in docs/, whose site has no link out of it."""
    return f"`{RESULTS.relative_to(ROOT)}/{run['file']}`"


def write_rows(headings: list[str], rows: list[list[str]]) -> str:
    """Write a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [headings, ["---"] * len(headings), *rows])


def summary(runs: list[Run]) -> str:
    """Return the table at the beginning of the page."""
    rows = []
    for question, benchmark, name in ROWS:
        run, (figure,) = find_newest(runs, benchmark, name)
        met = {True: "yes", False: "**no**", None: ""}[is_met(figure)]
        rows.append([question, format_measured(figure["measured"]), figure["goal"], met, cite(run)])
    return write_rows(["figure", "measured", "goal", "met", "run"], rows)


def all_runs(runs: list[Run]) -> str:
    """Return a row per run with its command, commit, date and missed goals; then the machines."""
    rows = []
    for run in sorted(runs, key=lambda run: run["file"]):
        missed = [
            f"{figure['figure']}: {format_measured(figure['measured'])}, goal {figure['goal']}"
            for figure in run["figures"]
            if is_met(figure) is False
        ]
        command = run["command"].partition(" --out ")[0]
        rows.append([cite(run), f"`{command}`", run["machine"]["commit"], run["machine"]["date"], "; ".join(missed)])
    left_out = ("commit", "date", "load")
    machines = {
        ", ".join(f"{key} {value}" for key, value in run["machine"].items() if key not in left_out) for run in runs
    }
    table = write_rows(["run", "command", "commit", "date", "goals missed"], rows)
    return "\n".join([table, "", *(f"- {machine}" for machine in sorted(machines))])


def on_gpu(runs: list[Run]) -> str:
    """Return a row for each figure that a part (`benchmarks.gpu_day`) had time for; without a file: not measured."""
    rows = []
    for part in PARTS:
        run = next((run for run in reversed(runs) if run["benchmark"] == f"gpu {part}"), None)
        if run is None:
            rows.append([part, "not measured", "", "", "", ""])
            continue
        for figure in run["figures"]:
            if figure["measured"] == LATE:
                continue
            used, device = str(figure.get("utilisation", "")), run["machine"]["device"]
            rows.append([part, figure["figure"], format_measured(figure["measured"]), figure["goal"], used, device])
    return write_rows(["part", "figure", "measured", "goal", "GPU used, %", "device"], rows)


def draw_chart(runs: list[Run], file: Path) -> None:
    """Draw the time of a round of each system relative to plain PyTorch, per workload."""
    from matplotlib.figure import Figure

    figure = Figure((7, 2.8), layout="constrained")
    area = figure.subplots()
    for place, workload in enumerate(WORKLOADS):
        _, found = find_newest(runs, f"overhead {workload}", *(f"{system} / floor" for system in SYSTEMS))
        for k, (colour, one) in enumerate(zip(SYSTEMS.values(), found, strict=True)):
            ratio, height = one["measured"]["median"], place + (k - 1) * 0.25
            area.plot(ratio, height, "o", color=colour, label=NAMES[k] if place == 0 else None)
            offset, align = ((-7, 0), "right") if ratio < 1 else ((7, 0), "left")
            area.annotate(
                f"{ratio:.3g}", (ratio, height), offset, textcoords="offset points", va="center", ha=align, fontsize=8
            )
    area.axvline(1, color="black", linewidth=0.8)
    area.set_xscale("log")
    area.set_xlim(0.5, 60)
    area.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    area.minorticks_off()
    area.grid(axis="x", linewidth=0.3)
    area.set_yticks(range(len(WORKLOADS)), list(WORKLOADS.values()))
    area.set_ylim(len(WORKLOADS) - 0.5, -0.5)
    area.set_xlabel("time of a round / plain PyTorch's (less is better; logarithmic)")
    area.legend(loc="upper right", fontsize=8, frameon=False)
    area.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


def fill_page(text: str, runs: list[Run]) -> str:
    """Return the page with the tables between their marks."""
    for mark, table in (("summary", summary(runs)), ("gpu", on_gpu(runs)), ("runs", all_runs(runs))):
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the page and the chart."""
    runs = load_runs()
    PAGE.write_text(fill_page(PAGE.read_text(), runs))
    draw_chart(runs, CHART)


if __name__ == "__main__":
    main()
