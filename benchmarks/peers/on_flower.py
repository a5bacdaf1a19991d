"""Flower's simulation engine: a ServerApp with its FedAvg, a ClientApp in two Ray workers of one thread each."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from functools import cache
from itertools import pairwise

import torch
from workload import Outcome, Workload, main, make_data, make_network, train_client

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

WORKERS = 2
reused_network = cache(make_network)  # one in each worker: lighter than a new one for each message
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    told = message.content["config"]
    work = Workload(**{name: told[name] for name in asdict(Workload())})
    x, y = make_data(work)
    client, module = int(context.node_config["partition-id"]), reused_network(work)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train_client(module, x[client], y[client], work)
    sent = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": work.images})}
    return Message(content=RecordDict(sent), reply_to=message)


def make_server(work: Workload, ends: list[float], module: torch.nn.Module) -> ServerApp:
    """Writes the end of each round into `ends` and the last weights into `module`."""
    app = ServerApp()

    def note(round: int, arrays: ArrayRecord) -> MetricRecord:
        ends.append(time.time())
        if round == work.rounds:
            module.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({})

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=work.clients,
                          min_available_nodes=work.clients)  # fmt: skip
        first = ArrayRecord(make_network(work).state_dict())
        strategy.start(grid, first, work.rounds, train_config=ConfigRecord(asdict(work)), evaluate_fn=note)

    return app


def simulate(work: Workload) -> Outcome:
    ends: list[float] = []
    module = make_network(work)
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": WORKERS, "include_dashboard": False},
    }
    run_simulation(make_server(work, ends, module), client_app, work.clients, backend_config=backend)
    seconds = [after - before for before, after in pairwise(ends)]
    return Outcome(ends[0], seconds, module, f"{WORKERS} workers, 1 thread each")


if __name__ == "__main__":
    import on_flower  # by its name, so that the workers import it too instead of getting it with every message

    main("flower", on_flower.simulate, "flwr", "ray")
