"""Flower's simulation on a workload: its message API, FedAvg, one Ray actor per core.

FLOWER_PYTHON -m benchmarks.systems.flower w1 2
"""

import os
import sys
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.pairs import find_titled
from benchmarks.systems import protocol
from benchmarks.workloads import WORKLOADS

WARMUPS, ROUNDS = 2, 2000
client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train one client."""
    from benchmarks.systems import plain

    name = str(message.content["config"]["work"])
    module = plain.resident(name)[2]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    plain.train(name, int(context.node_config["partition-id"]))
    content = RecordDict(
        {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": WORKLOADS[name].samples})}
    )
    return Message(content=content, reply_to=message)


def main(name: str, actors: int) -> None:
    """Serve rounds of a workload."""
    out, work = protocol.lines(), WORKLOADS[name]

    class Told(FedAvg):
        """FedAvg that begins a round on request, when the previous one has ended."""

        def configure_train(self, server_round: int, *arguments: Any, **more: Any) -> Any:
            if server_round == WARMUPS + 1:
                protocol.ready(out, find_titled(os.getpid(), "ClientAppActor"))
            elif server_round > WARMUPS:
                print("done", file=out)
            if server_round > WARMUPS and not protocol.wait(out):
                os._exit(0)
            return super().configure_train(server_round, *arguments, **more)

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        from flwr.app import ConfigRecord

        strategy = Told(
            fraction_train=work.cohort / work.clients,
            min_train_nodes=work.cohort,
            fraction_evaluate=0.0,
            min_available_nodes=work.clients,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(work.seeded().state_dict()),
            num_rounds=ROUNDS,
            train_config=ConfigRecord({"work": name}),
        )

    run_simulation(
        server,
        client,
        work.clients,
        backend_config={
            "init_args": {"num_cpus": actors, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
