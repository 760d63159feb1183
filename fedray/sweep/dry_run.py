"""`fedray sweep --dry-run`: number of cells, resource requests of trials, whether they fit, and how long they take."""

import heapq
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedray.cells.metric import FEWEST_SEEDS, LAST, describe_few_seeds, describe_rounds
from fedray.cluster.connection import count_cpus, find_address, use_cluster
from fedray.cluster.resources import count_capacity, describe_idle_gpus, get_bundle, list_nodes, refuse_infeasible
from fedray.common.errors import escape, format_count, format_duration, format_number
from fedray.config import RunConfig, Runtime
from fedray.config.evaluation import describe_late_start
from fedray.engine.process.lanes import MOST
from fedray.engine.process.residence import KEPT
from fedray.sweep.draws import count_training_gradients
from fedray.sweep.estimate import rank_work
from fedray.sweep.plan import Plan, list_distinct
from fedray.sweep.storage import correct_statuses
from fedray.sweep.sweep import Sweep

UNITS = {"CPU": "core", "GPU": "GPU"}
"""A resource of Ray -> the unit of its hours."""
LONG = 600.0
"""Seconds of wall clock from which more nodes are worth a line."""


def list_local_nodes() -> list[dict[str, float]]:
    """Return the resources of a Ray started on this machine."""
    import torch

    return [{"CPU": float(count_cpus()), "GPU": float(torch.cuda.device_count())}]


def print_plan(plan: Plan) -> None:
    """Print the plan. Raises UserError if a trial can never be placed."""
    console = Console(highlight=False)
    table = Table("", "cell", "status", "run", box=None, pad_edge=False)
    sheet = correct_statuses(plan.sheet)
    for number, cell in enumerate(sheet.cells.values(), 1):
        if plan.is_chosen(cell):
            status = sheet.get_status(cell.hash) if cell.hash in sheet.records else "to run"
            table.add_row(str(number), cell.hash, status, Text(escape(cell.label)))
    console.print(table)
    for line in _describe_tests([cell.run for cell in filter(plan.is_chosen, sheet.cells.values())]):
        console.print(line, soft_wrap=True)
    print_few_seeds(sheet.name, [cell.run for cell in sheet.cells.values()])
    if find_address(plan.options.address)[1] is None:
        nodes = list_local_nodes()
    else:
        with use_cluster(plan.options.address):
            nodes = list_nodes()
    console.print(_describe_nodes(nodes))
    for runtime, count in plan.requests.items():
        refuse_infeasible(runtime, nodes)
        asked = _describe_request(count, runtime)
        console.print(f"{asked}: fits, {count_room(runtime, nodes)} at a time")
        if runtime.torch_device == "cuda":
            kept = "shards and states" if runtime.actors == 1 else "shards"
            limit = f"{100 * KEPT * runtime.gpu_share:.3g} % of a GPU's memory"
            console.print(f"each actor keeps its clients' {kept} on the GPU, in at most {limit}")
            lanes = f"up to {MOST}" if runtime.lanes == "auto" else runtime.lanes
            console.print(f"and trains {lanes} clients side by side; each takes the memory of one client's training")
    if plan.requests and (line := describe_idle_gpus(dict.fromkeys(plan.requests, sys.maxsize), nodes)):
        console.print(line, soft_wrap=True)


def print_cells(sweep: Sweep, only: Collection[str]) -> None:
    """Print the cells of a sweep whose data are not here; `only` as for `list_distinct`."""
    cells = list_distinct(sweep, only)
    for number, (_, label) in cells.items():
        print(f"{number:>{len(str(max(cells)))}}  {escape(label)}")
    print(f"{sweep.name}: {format_count(len(cells), 'cell')}")


def print_few_seeds(name: str, runs: Sequence[RunConfig]) -> None:
    """Print a line if methods have too few seeds to be compared. A tune stage and a small version are not compared."""
    seeds, methods = len({run.seed for run in runs}), len({run.algorithm.name for run in runs})
    if methods > 1 and seeds < FEWEST_SEEDS and not name.endswith("/tune") and "-smoke" not in name:
        print(f"{name}: {describe_few_seeds(seeds)}")


def _describe_nodes(nodes: Sequence[Mapping[str, float]]) -> str:
    have = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    return f"cluster: {format_count(len(nodes), 'node')}, {have['CPU']:g} CPU, {have['GPU']:g} GPU"


def _describe_request(count: int, runtime: Runtime) -> str:
    """Return what so many cells ask for: `1 cell asks for 2 actors of 1 CPU each`."""
    asked = " + ".join(f"{amount:g} {name}" for name, amount in get_bundle(runtime).items())
    actors = "as many actors as fit" if runtime.actors == "auto" else format_count(runtime.actors, "actor")
    return f"{format_count(count, 'cell')} {'asks' if count == 1 else 'ask'} for {actors} of {asked} each"


def count_room(runtime: Runtime, nodes: Sequence[dict[str, float]], most: int | None = None) -> int:
    """Return how many cells of these requests run at a time, at most `most`."""
    room = sum(count_capacity(runtime, node) for node in nodes) // runtime.actor_count
    return room if most is None else min(room, most)


def print_forecast(
    file: str,
    numbered: Mapping[int, RunConfig],
    nodes: Sequence[dict[str, float]],
    seconds: Sequence[float | None],
    per_round: float | None = None,
    start: float | None = None,
    most: int | None = None,
) -> float | None:
    """Print how many cells run at a time, in how many waves, how long, also on more nodes, and what a preemption costs.

    Return the seconds of wall clock: None if they are not known, infinite if a cell does not fit.

    file: as `fedray run` takes it, with its changes; empty if `--cell` numbers others. numbered: cell number -> run.
    nodes: resources of each node, the same for all. seconds: of each cell with one actor. per_round: seconds of a round
    of the cell with the most gradients in it. start: seconds until the first cell begins. None if unknown. most:
    largest number of cells at a time.
    """
    import torch

    console, runs = Console(highlight=False, soft_wrap=True), [*numbered.values()]
    console.print(_describe_nodes(nodes))
    rooms = {runtime: count_room(runtime, nodes, most) for runtime in dict.fromkeys(run.runtime for run in runs)}
    counts, actors = Counter(run.runtime for run in runs), dict[Runtime, int]()
    for runtime, room in rooms.items():
        cohort = max(run.clients.largest_cohort for run in runs if run.runtime == runtime)
        actors[runtime] = min(room, counts[runtime]) * (cohort if runtime.actors == "auto" else runtime.actors)
        lacks_gpus = bool(runtime.gpus_per_actor) and not any(node.get("GPU") for node in nodes)
        waves = (
            f"{room} at a time, {format_count(-(-counts[runtime] // room), 'wave')}{_describe_limit(runtime, nodes)}"
            if room
            else f"they do not fit; {'there is no GPU (--nodes, --gpus-per-node); or ' if lacks_gpus else ''}"
            "lower runtime.cpus_per_actor, or gpus_per_actor (0: no GPU)"
        )
        console.print(f"{_describe_request(counts[runtime], runtime)}: {waves}")
    if line := describe_idle_gpus(actors, nodes):
        console.print(line)
    work = [(count_training_gradients(run) or 0.0) / run.training.rounds for run in runs]  # 0: data of unknown size
    shares = [each / max(work) if all(work) else 1.0 for each in work]
    fitting = [part for part in zip(runs, seconds, shares, strict=True) if rooms[part[0].runtime]]
    if not fitting:
        return math.inf
    slowest = max(range(len(runs)), key=lambda place: (work[place], *rank_work(runs[place], 1)))
    wall, method, cell = None, runs[slowest].algorithm.name, [*numbered][slowest]
    cells, here = list[tuple[Runtime, float]](), "cuda" if torch.cuda.is_available() else "cpu"
    reserved = dict.fromkeys(("CPU", "GPU"), 0.0)
    for run, each, share in fitting:
        runtime = run.runtime
        if per_round is not None:
            each = per_round * share * run.training.rounds
        elif each is not None and runtime.torch_device == here:
            each /= runtime.actor_count
        else:
            continue
        cells.append((runtime, each))
        for name, amount in get_bundle(runtime).items():
            reserved[name] += amount * runtime.actor_count * each / 3600
    started = start if start is not None and per_round is None else 0.0

    def find_wall(nodes: Sequence[dict[str, float]]) -> float:
        """Return the seconds that the cells take on these nodes; infinite if one does not fit."""
        rooms = {runtime: count_room(runtime, nodes, most) for runtime, _ in cells}
        shares = [(1 / rooms[runtime], each) for runtime, each in cells] if all(rooms.values()) else []
        return started + find_makespan(shares) if shares else math.inf

    if cells:
        hours = " and ".join(
            f"{format_number(amount)} {UNITS[name]}-hours" for name, amount in reserved.items() if amount
        )
        wall = find_wall(nodes)
        unequal = " of the slowest method, of the others by their gradients" if min(shares) < 1 else ""
        added = " (with each cell's start and wait for its turn), without communication"
        console.print(
            f"{format_count(len(cells), 'cell')}: {format_duration(wall)} of wall clock, {hours} reserved, busy or not"
            + (f", at {per_round:g} s per round{unequal}" if per_round is not None else added)
            + f"; Ray's start, {f'{format_duration(started)}, is' if started else 'a few seconds, is not'} included"
        )
        if per_round is not None:
            have = {name: sum(node.get(name, 0.0) for node in nodes) * wall / 3600 for name in reserved}
            whole = [f"{format_number(have[name])} {unit}-hours" for name, unit in UNITS.items() if have[name]]
            console.print(f"a cluster that bills whole nodes for that time counts {' and '.join(whole)}")
        if wall > LONG or per_round is not None:
            walls = {count: find_wall([nodes[0]] * count) for count in sorted({1, 2, 4, 8, len(nodes)})}
            least = min(count for count, there in walls.items() if there == min(walls.values()))
            others = [
                f"{format_duration(there)} with {format_count(count, 'node')}"
                for count, there in walls.items()
                if count <= max(least, len(nodes)) and there < math.inf
            ]
            enough = "; more save no time" if least < max(walls) else ""
            console.print(f"on nodes like {'this one' if len(nodes) == 1 else 'these'}: {', '.join(others)}{enough}")
    if len(cells) < len(fitting):
        size = runs[slowest].training.batch_size  # for those who know a GPU's samples per second
        shown = f"`fedray run {file} --cell {cell} --set training.rounds=3 --no-track` prints it, of " if file else ""
        of = "all of a client's samples" if size == "full" else format_count(size, "sample")
        computes = f", with {work[slowest]:,.0f} gradients of {of} in a round" if work[slowest] else ""
        console.print(
            f"{len(fitting) - len(cells)} cells: hours not measured; measure a round where they will run "
            f"({shown}{method}, the slowest method{computes}); --nodes takes --seconds-per-round"
        )
    if per_round is not None:
        on_gpus = {run.runtime for run, *_ in fitting if run.runtime.gpus_per_actor}
        one_gpu, node = {"CPU": float(sys.maxsize), "GPU": 1.0}, nodes[0]  # Ray fills one GPU before the next
        fits = [min(count_capacity(of, one_gpu), count_capacity(of, node), actors[of]) for of in on_gpus]
        together = max(fits, default=0)
        console.print(
            f"{per_round:g} s have to be a round of {method}, the slowest method (cell {cell}), with "
            + (
                f"{together} processes on each GPU"
                if together > 1
                else "as many such runs at once on a node as planned"
            )
        )
        pace = [(run.data, run.model, run.training.batch_size, run.training.precision) for run in runs]
        if other := sum(one != pace[slowest] for one in pace):
            console.print(
                f"{other} of {len(runs)} cells have other data, another model, batch or precision than cell "
                f"{cell}: their gradients are taken to last as long as its; to plan such cells with seconds of "
                "their own, leave the others out (`--only`, a pattern of their labels)"
            )
    lost = max(min(run.runtime.checkpoint_every, run.training.rounds) for run, *_ in fitting)
    price = "" if per_round is None else f" or {format_duration(lost * per_round)}"
    console.print(
        f"a preemption costs each running cell the rounds since its last checkpoint, at most {lost} rounds{price} "
        "(runtime.checkpoint_every), and finished cells nothing; the same command goes on"
    )
    return wall if len(fitting) == len(runs) else math.inf


def _describe_limit(runtime: Runtime, nodes: Sequence[Mapping[str, float]]) -> str:
    """Return that a node's CPUs leave parts of its GPUs to nobody; empty if they do not."""
    node = nodes[0]
    room, of_gpus = count_capacity(runtime, dict(node)), count_capacity(runtime, {**node, "CPU": float(sys.maxsize)})
    if not runtime.gpus_per_actor or room >= of_gpus:
        return ""
    return f"; a node's {node['CPU']:g} CPUs are the limit, its GPUs have room for {of_gpus}"


def find_makespan(cells: Sequence[tuple[float, float]]) -> float:
    """Return the seconds until all cells have ended that start in this order as soon as there is room."""
    running, free, now = list[tuple[float, float]](), 1.0, 0.0
    for share, seconds in cells:
        while share > free + 1e-9:
            now, ended = heapq.heappop(running)
            free += ended
        heapq.heappush(running, (now + seconds, share))
        free -= share
    return max((end for end, _ in running), default=0.0)


def _describe_tests(runs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield the rounds that `last10_*` averages, with the number of cells for each choice, and a late first test."""
    for metric, personal in (("test_accuracy", False), ("personal_accuracy", True)):
        rounds = (run.evaluation.list_averaged(run.training.rounds, personal) for run in runs)
        choices = Counter(describe_rounds([one]) for one in rounds if one)
        many = len(choices) > 1
        each = [said + f" in {count} of {len(runs)} cells" * many for said, count in choices.items()]
        if each:
            yield f"{LAST}{metric}: {', '.join(each)}"
    if late := describe_late_start(
        (run.evaluation.find_first(run.training.rounds), run.training.rounds) for run in runs
    ):
        yield late
