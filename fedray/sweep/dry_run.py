"""`fedray sweep --dry-run`: how many cells, what a trial asks of the cluster, whether it fits."""

import os
from collections import Counter

from rich.console import Console
from rich.table import Table

from fedray.cluster.connection import cluster, cpus_here
from fedray.cluster.resources import bundle, capacity, cluster_nodes, refuse_infeasible
from fedray.sweep.plan import Plan


def nodes_here() -> list[dict[str, float]]:
    """What a Ray started on this machine would have."""
    import torch

    return [{"CPU": float(cpus_here()), "GPU": float(torch.cuda.device_count())}]


def show(plan: Plan, address: str | None) -> None:
    """Print the plan. Raises UserError where a trial can never be placed."""
    console = Console(highlight=False)
    table = Table("", "cell", "status", "run", box=None, pad_edge=False)
    known = plan.known
    for number, cell in enumerate(plan.cells.values(), 1):
        if plan.is_chosen(cell):
            status = known[cell.hash].status if cell.hash in known else "to run"
            table.add_row(str(number), cell.hash, status, cell.label)
    console.print(table)
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        nodes = nodes_here()
    else:
        with cluster(address):
            nodes = cluster_nodes()
    have = Counter[str]()
    for node in nodes:
        have.update({name: amount for name, amount in node.items() if name in ("CPU", "GPU")})
    console.print(f"cluster: {len(nodes)} node(s), {have['CPU']:g} CPU, {have['GPU']:g} GPU")
    for runtime, count in plan.requests.items():
        asked = " + ".join(f"{amount:g} {name}" for name, amount in bundle(runtime).items())
        refuse_infeasible(runtime, nodes)
        room = sum(capacity(runtime, node) for node in nodes) // runtime.actor_count
        if runtime.gpus_per_actor == "auto":
            asked += " (auto: a whole GPU until one client has been measured)"
        actors = "as many actors as fit" if runtime.actors == "auto" else f"{runtime.actors} actor(s)"
        console.print(f"{count} trials ask for {actors} of {asked} each: fits, {room} at a time")
