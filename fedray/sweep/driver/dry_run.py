"""`fedray sweep --dry-run`: number of cells, resource requests of trials, and whether they fit."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedray.cells.last_rounds import describe_rounds
from fedray.cells.metric import LAST
from fedray.cluster.connection import count_cpus, use_cluster
from fedray.cluster.resources import count_capacity, get_bundle, list_nodes, refuse_infeasible
from fedray.common.errors import escape
from fedray.config import RunConfig
from fedray.engine.process.residence import KEPT
from fedray.sweep.plan.plan import Plan


def list_local_nodes() -> list[dict[str, float]]:
    """Return the resources of a Ray started on this machine."""
    import torch

    return [{"CPU": float(count_cpus()), "GPU": float(torch.cuda.device_count())}]


def print_plan(plan: Plan, address: str | None) -> None:
    """Print the plan. Raises UserError if a trial can never be placed."""
    console = Console(highlight=False)
    table = Table("", "cell", "status", "run", box=None, pad_edge=False)
    known = plan.known
    for number, cell in enumerate(plan.cells.values(), 1):
        if plan.is_chosen(cell):
            status = known[cell.hash].ending.status if cell.hash in known else "to run"
            table.add_row(str(number), cell.hash, status, Text(escape(cell.label)))
    console.print(table)
    for line in _describe_averaged([cell.run for cell in plan.cells.values() if plan.is_chosen(cell)]):
        console.print(line, soft_wrap=True)
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        nodes = list_local_nodes()
    else:
        with use_cluster(address):
            nodes = list_nodes()
    have = Counter[str]()
    for node in nodes:
        have.update({name: amount for name, amount in node.items() if name in ("CPU", "GPU")})
    console.print(f"cluster: {len(nodes)} node(s), {have['CPU']:g} CPU, {have['GPU']:g} GPU")
    for runtime, count in plan.requests.items():
        asked = " + ".join(f"{amount:g} {name}" for name, amount in get_bundle(runtime).items())
        refuse_infeasible(runtime, nodes)
        room = sum(count_capacity(runtime, node) for node in nodes) // runtime.actor_count
        if runtime.gpus_per_actor == "auto":
            asked += " (auto: a whole GPU until one client has been measured)"
        actors = "as many actors as fit" if runtime.actors == "auto" else f"{runtime.actors} actor(s)"
        console.print(f"{count} trials ask for {actors} of {asked} each: fits, {room} at a time")
        if runtime.torch_device == "cuda" and runtime.gpus_per_actor != "auto":
            kept = "shards and states" if runtime.actors == 1 else "shards"
            limit = f"{100 * KEPT * runtime.gpu_share:.3g} % of a GPU's memory"
            console.print(f"each actor keeps its clients' {kept} on the GPU, in at most {limit}")


def _describe_averaged(runs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield the rounds that `last10_*` averages, with the number of cells for each choice if cells differ."""
    for metric, personal in (("test_accuracy", False), ("personal_accuracy", True)):
        rounds = (run.evaluation.list_averaged(run.training.rounds, personal) for run in runs)
        found = Counter(describe_rounds([one]) for one in rounds if one)
        many = len(found) > 1
        each = [said + f" in {count} of {len(runs)} cells" * many for said, count in found.items()]
        if each:
            yield f"{LAST}{metric}: {', '.join(each)}"
