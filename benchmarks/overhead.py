"""A round on Ray actors compared with the floor: the same steps in plain PyTorch, in as many processes.

    python -m benchmarks.overhead --workload w2
    python -m benchmarks.overhead --workload w1 --peers --pairs 20

`--peers` adds Flower's simulation and pfl-research, each installed from PyPI into an environment of its own (kept in
$FEDRAY_PEERS, otherwise made in the temporary directory). All systems train the same cohorts with the same steps on the
same cores, with the same settings of glibc's allocator and training processes at Ray's niceness, and take turns by
rounds. fedray stores images with the channels innermost if that is faster; `contiguous` is fedray without that.
With 20 pairs about 1 (w0), 3 (w1) and 5 (w2) minutes; with peers three times that.
"""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import pairs as p
from benchmarks.workloads import WORKLOADS
from fedray.common.process import has_bf16

GOALS = {"w0": "", "w1": "<= 1.10", "w2": "<= 1.05"}
INLINE = {"scaffold": "<= 0.55", "fedtoga": "<= 0.9"}
"""Methods besides FedAvg that take w0 in one process, and their goals."""
PEER_GOALS = {
    ("flower", "w0"): "<= 1/20",
    ("flower", "w1"): "< 1",
    ("flower", "w2"): "< 1",
    ("pfl", "w0"): "<= 1",
    ("pfl", "w1"): "< 1",
    ("pfl", "w2"): "<= 1",
}


def main(
    workload: Annotated[str, typer.Option(help="w0 | w1 | w2")] = "w2",
    pairs: Annotated[int, typer.Option(min=1)] = 20,
    actors: Annotated[int, typer.Option(help="actors, and processes of the floor and of the peers")] = 2,
    peers: Annotated[bool, typer.Option("--peers", help="Flower and pfl-research too")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="fedray with training.precision bf16 too")] = False,
    toga: Annotated[bool, typer.Option(help="FedTOGA too")] = True,
    out: Annotated[Path | None, typer.Option(help="JSON file")] = None,
) -> None:
    """Print the ratios."""
    if workload not in WORKLOADS:
        raise typer.BadParameter(f"found {workload!r}; one of {', '.join(WORKLOADS)}", param_hint="--workload")
    with p.report(f"overhead {workload}", out) as told, contextlib.ExitStack() as stack:
        systems = [p.floor(workload, actors), p.ours(workload, actors)]
        images = workload != "w0"
        if bf16 and not has_bf16():
            told.add("fedray bf16", p.NO_BF16)
            bf16 = False
        if images:
            systems.append(p.ours(workload, actors, precision="contiguous"))
        if toga:
            systems.append(p.ours(workload, actors, "fedtoga"))
        if bf16:
            systems.append(p.ours(workload, actors, precision="bf16"))
        if workload == "w0":
            systems += [p.floor(workload, 1, "floor, one process"), p.ours(workload, 0), p.ours(workload, 1)]
            systems += [p.ours(workload, 0, method) for method in INLINE]
        missing: dict[str, str] = {}
        if peers:
            from benchmarks.systems.peers import started

            theirs, missing = started(workload, actors)
            systems += theirs
        for system in systems:
            stack.enter_context(system)
        systems, ended = p.started(systems)
        seconds, later = p.interleaved(systems, pairs)
        missing |= ended | later
        for name in {"floor", "fedray"} & missing.keys():
            raise RuntimeError(missing[name])
        memory = {system.name: system.memory() for system in systems if system.name in seconds}

        def against(name: str, other: str, goal: str = "", **more: object) -> None:
            if name not in seconds or other not in seconds:
                return  # not asked for, or missing, which is reported below
            told.add(f"{name} / {other}", p.ratio(seconds[name], seconds[other]), goal, **more)

        against("fedray", "floor", GOALS[workload])
        against("fedray contiguous", "floor", f"{GOALS[workload]}, the same layout")
        against("fedray fedtoga", "fedray", "step <= 2.15: see step.py")
        against("fedray bf16", "fedray contiguous" if images else "fedray", "<= 1/2.5")
        against("fedray inline", "floor, one process", "<= 0.4")
        for method, goal in INLINE.items():
            against(f"fedray {method} inline", "floor, one process", goal)
        against("fedray, one process", "floor, one process", "<= 1.25")
        for peer in (system.name for system in systems if system.name.startswith(("flower", "pfl"))):
            kind = peer.split(",")[0]
            against("fedray inline" if peer.endswith("one process") else "fedray", peer, PEER_GOALS[kind, workload])
            if kind == "flower":
                against("fedray bf16", peer, "<= 1/2.5")
            against(peer, "floor, one process" if peer.endswith("one process") else "floor")
        for name, error in missing.items():
            told.add(name, f"not measured: {error}")
        told.add(
            "memory of the processes that train, fedray / floor, PSS",
            round(memory["fedray"]["workers"] / memory["floor"]["workers"], 3),
            "<= 1.25",
            megabytes={name: {part: round(mb) for part, mb in parts.items()} for name, parts in memory.items()},
        )


if __name__ == "__main__":
    typer.run(main)
