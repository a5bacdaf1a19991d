"""Seconds and bytes of a round across processes: posterity's FedAvg against Flower's own, on the same model and rows.

    python benchmarks/flower_speed.py [--sites 4,16] [--rounds 3] [--hidden 4096] [--out PAGE]     # posterity[flower]

One SuperLink and a SuperNode for each site on this machine, for either app; each runs for one round and for `--rounds`:
the difference is what a round more costs, without starting, registering and the last scores. A run that does not end
within the patience of the tests is named. Bytes are Flower's own count of a run's traffic (`flwr list`) in the same
difference, beside what the simulator counts for the payload. The digits are divided among the sites as in a simulation;
Flower's app gets each site's rows in a file, has the same network, step size, batch size and one epoch, and evaluates
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import numpy as np  # noqa: E402

from posterity.experiment.setup import load_federation  # noqa: E402
from posterity.flower.new_app import write_app  # noqa: E402
from posterity.runs.folder import METRICS, read_lines  # noqa: E402
from posterity.settings.config import Config, from_table  # noqa: E402

LR, BATCH = 0.05, 10
PYPROJECT = """[project]
name = "{name}"
version = "0.1.0"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.40,<1.43"]
[tool.flwr.app]
publisher = "benchmark"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "plain.server_app:app"
clientapp = "plain.client_app:app"
[tool.flwr.app.config]
rounds = {rounds}
sites = {sites}
hidden = {hidden}
rows = "{rows}"
"""
SERVER = """from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from plain.network import make
app = ServerApp()
@app.main()
def main(grid, context):
    told = context.run_config
    n = int(told["sites"])
    way = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
    first = ArrayRecord(make(int(told["hidden"])).state_dict())
    way.start(grid=grid, initial_arrays=first, num_rounds=int(told["rounds"]), timeout=3600)
"""
CLIENT = f"""from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
import numpy as np, torch
from plain.network import make
app = ClientApp()
@app.train()
def train(message, context):
    told = context.run_config
    stored = np.load(told["rows"] + "/" + context.node_config["client"] + ".npz")
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["y"])
    model = make(int(told["hidden"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    descent = torch.optim.SGD(model.parameters(), {LR})
    for rows in torch.randperm(len(x)).split({BATCH}):
        descent.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        descent.step()
    sent = {{"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({{"num-examples": len(x)}})}}
    return Message(content=RecordDict(sent), reply_to=message)
"""
NETWORK = """from torch import nn
def make(hidden):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
"""


@dataclass(frozen=True)
class Cost:
    """What a run took."""

    seconds: float
    traffic: int  # bytes, by Flower's count
    payload: int = 0  # of these, what a simulation counts


def ours(config: Config, folder: Path) -> Path:
    """The app that `posterity flower new` writes, whose server writes into `folder`."""
    name = f"ours-{config.clients}-{config.rounds}"
    write_app(folder / name, config, config.clients or 0)
    path = folder / name / "pyproject.toml"
    path.write_text(path.read_text().replace(f'"runs/{name}"', f'"{folder / "server" / name}"'))
    return folder / name


def theirs(config: Config, hidden: int, folder: Path) -> Path:
    """Flower's FedAvg, with each site's training rows in a file."""
    name = f"theirs-{config.clients}-{config.rounds}"
    place, rows = folder / name, folder / f"rows-{config.clients}"
    (place / "plain").mkdir(parents=True)
    rows.mkdir(exist_ok=True)
    federation = load_federation(config)
    for client in range(federation.clients):
        mine = federation.train.client(client)
        np.savez(rows / f"client {client}.npz", x=federation.x[mine].float().numpy(), y=federation.y[mine].numpy())
    text = PYPROJECT.format(name=name, rounds=config.rounds, sites=config.clients, hidden=hidden, rows=rows)
    files = {"pyproject.toml": text, "LICENSE": "free\n", "plain/__init__.py": "", "plain/server_app.py": SERVER,
             "plain/client_app.py": CLIENT, "plain/network.py": NETWORK}  # fmt: skip
    for path, content in files.items():
        (place / path).write_text(content)
    return place


def timed(place: Any, app: Path) -> Cost | None:
    """One run on a deployment; None: it did not end."""
    begun = time.perf_counter()
    try:
        place.run(app)
    except subprocess.TimeoutExpired:
        return None
    seconds = time.perf_counter() - begun
    run = json.loads(place.flwr("list", "here", "--format", "json").stdout)["runs"][0]
    told = json.loads(place.flwr("list", "here", "--run-id", str(run["run-id"]), "--format", "json").stdout)
    metrics = app.parent / "server" / app.name / METRICS
    lines = read_lines(metrics) if metrics.exists() else []
    payload = sum(line["bytes_up"] + line["bytes_down"] for line in lines if line["kind"] == "round")
    return Cost(seconds, _traffic(told), payload)


def _traffic(told: Any) -> int:
    """Bytes of a run in what `flwr list` says, wherever they stand."""
    if isinstance(told, dict):
        return told["total-bytes"] if "total-bytes" in told else max(map(_traffic, told.values()), default=0)
    return max(map(_traffic, told), default=0) if isinstance(told, list) else 0


def compare(sites: int, rounds: int, hidden: int, folder: Path) -> str:
    """A row of the table: what a round more takes."""
    table = {"method": "fedavg", "dataset": "digits", "clients": sites, "lr": LR, "batch_size": BATCH,
             "partition": "iid", "evaluate_every": rounds + 1, "set": {"model.hidden": str(hidden)}}  # fmt: skip
    configs = [from_table({**table, "rounds": count}) for count in (1, rounds)]
    mine = one_more(folder / "ours", sites, configs, ours)
    other = one_more(folder / "theirs", sites, configs, lambda config, place: theirs(config, hidden, place))
    traffic = "" if mine is None else f"{mine.traffic:,.0f} ({mine.traffic / mine.payload - 1:+.1%})"
    ratio = "" if mine is None or other is None else f"{mine.seconds / other.seconds:.2f}"
    return (f"| {sites} | {_told(mine, 'seconds', '.1f')} | {_told(other, 'seconds', '.1f')} | {ratio} | "
            f"{_told(mine, 'payload', ',.0f')} | {traffic} | {_told(other, 'traffic', ',.0f')} |")  # fmt: skip


def one_more(folder: Path, sites: int, configs: Sequence[Config], app: Callable[[Config, Path], Path]) -> Cost | None:
    """What a round more takes of an app on a deployment of its own; None: a run did not end."""
    from flower.test_app_deployment import Deployment

    folder.mkdir(parents=True)
    with ExitStack() as stack:
        place = Deployment(folder / "place", stack, database="")  # in memory: a file is locked when 16 nodes write
        for k in range(sites):
            place.node(f"client {k}", folder / "sites")
        place.wait_for(sites)
        short = timed(place, app(configs[0], folder))
        long = timed(place, app(configs[1], folder)) if short else None
    print(sites, folder.name, short, long, flush=True)
    if short is None or long is None:
        return None
    rounds = configs[1].rounds - configs[0].rounds
    return Cost((long.seconds - short.seconds) / rounds, (long.traffic - short.traffic) // rounds,
                (long.payload - short.payload) // rounds)  # fmt: skip


def _told(cost: Cost | None, name: str, form: str) -> str:
    return "did not end" if cost is None else format(getattr(cost, name), form)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default="4,16", help="numbers of sites, comma separated")
    parser.add_argument("--rounds", type=int, default=3, help="of the longer run; the shorter one has 1")
    parser.add_argument("--hidden", type=int, default=4096, help="units of the MLP: 4096 make 1.2 MB")
    parser.add_argument("--out", type=Path, help="where the table is written to, as Markdown")
    asked = parser.parse_args(given)
    rows = ["| sites | s a round, posterity | Flower's FedAvg | ratio | payload, bytes a round | traffic by Flower's "
            "count | of Flower's FedAvg |", "|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        for sites in map(int, asked.sites.split(",")):
            rows.append(compare(sites, asked.rounds, asked.hidden, Path(place) / f"sites-{sites}"))
            print(rows[-1], flush=True)
    text = "\n".join(rows)
    if asked.out:
        asked.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
