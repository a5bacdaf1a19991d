"""Sites and a server in one process: every question and reply is bytes, every record is on disk and nowhere else."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

from kinds import fewer, needs

from posterity.core.tree import tree_rows
from posterity.engine.engines import ORACLE
from posterity.engine.participation import Participation
from posterity.engine.round import first_state, train_round
from posterity.engine.store import Store
from posterity.experiment.setup import DTYPES, load_federation, set_up
from posterity.flower.experiment import run_experiment
from posterity.flower.records import RecordFiles
from posterity.flower.samples import samples_of
from posterity.flower.server import SECRET
from posterity.flower.site import ClientSite, answer
from posterity.laws.case import largest_gap
from posterity.settings.config import Config, from_table

EXPERIMENT = "test"
SETTINGS = {  # such that every form of a message occurs within two rounds
    "fedavg+drop": {"after": "1", "threshold": "0.5"},
    "lgfedavg": {"warm_rounds": "1"},
}


def configuration(spec, **changes) -> Config:
    """Three clients with a handful of digits each, two rounds."""
    table = {"method": spec, "dataset": "digits", "clients": 3, "rounds": 2, "subset": "4%", "lr": 0.05,
             "partition": "dirichlet:0.5:2", "batch_size": 10, "evaluate_every": 2, "engine": "oracle",
             "min_count": 1, **needs(spec), **changes}  # fmt: skip
    own = {**({"model.hidden": "8"} if "model" not in changes else {}), **fewer(spec), **SETTINGS.get(spec, {})}
    return from_table({**table, "set": {**own, **changes.get("set", {})}})


@functools.lru_cache(maxsize=4)
def _federation(**settings):
    return load_federation(from_table(settings))


def federation_of(config: Config):
    names = ("dataset", "clients", "subset", "public", "newcomers", "partition", "seed")
    return _federation(**{name: getattr(config, name) for name in names})


@dataclass
class InProcess:
    """Nodes whose numbers say nothing about who they are; a site is made anew for every question."""

    make: dict  # node -> function that makes its site
    spoil: dict = field(default_factory=dict)  # (node, question's number) -> what becomes of the reply
    asked: int = 0

    def nodes(self):
        return sorted(self.make)

    def ask(self, questions):
        for node, data in questions:
            assert type(data) is bytes
            self.asked += 1
            reply = answer(self.make[node](), data)
            yield node, self.spoil.get((node, self.asked), lambda sent: sent)(reply)


def node_of(client: int) -> int:
    return 900 - 7 * client


def sites(config: Config, folder: Path) -> dict:
    """A node for every client of the configuration's federation; the largest number is client 0."""
    federation, dtype = federation_of(config), DTYPES[config.dtype]
    samples = {k: samples_of(federation, k, dtype) for k in range(federation.clients)}
    return {
        node_of(k): functools.partial(ClientSite, config, EXPERIMENT, mine, folder / "sites")
        for k, mine in samples.items()
    }


def deploy(config: Config, folder: Path, watch=lambda line: None, spoil=None):
    """The configuration's run by a server and sites, from where the folder stands to its end."""
    federation, make = federation_of(config), sites(config, folder)
    public = None if federation.public is None else federation.x[federation.public].to(DTYPES[config.dtype])
    exchange = InProcess(make, spoil or {})
    put_secret(folder / "server", config.seed)
    return run_experiment(config, exchange, folder / "server", len(make), watch, public, wait=0)


def put_secret(folder: Path, number: int) -> None:
    """The number of which a server draws where a method protects clients, as it would have written it itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SECRET).write_text(f"{number:016x}\n")


def simulate(config: Config, cohorts=None):
    """The same run by the simulator's oracle, whose sums are formed client by client: state, store, round logs."""
    sim = set_up(config, federation_of(config)).sim
    object.__setattr__(sim, "limit", {"training": 1})
    able = sim.federation.train.counts[: sim.federation.members].nonzero()[:, 0]
    state, store, logs = first_state(sim), Store(sim.federation.clients), []
    for number in range(1, config.rounds + 1):
        drawn = Participation.parse(config.participation).draw(able, sim.root, number)
        cohort = drawn if cohorts is None else able[cohorts[number - 1]]
        state, log = train_round(sim, ORACLE, state, store, cohort, number, config.rounds)
        logs.append(log)
    return state, store, logs


def records(server, folder: Path, like) -> dict:
    """What lies on the sites' disks, by the client's number: the record that counts."""
    found = {}
    for name, round in server.counted.items():
        files = RecordFiles(folder / "sites", EXPERIMENT, name, server.agreement.fingerprint)
        found[server.roster.numbers[name]] = files.read(like, round)
    return found


def assert_same_end(server, folder: Path, expected) -> None:
    """State and records are those of the simulator, to the last bit; so are the bytes of every round."""
    state, store, _ = expected
    assert largest_gap(server.state, state)[0] == 0.0
    found = records(server, folder, tree_rows(store.rows, 0))
    assert sorted(found) == store.known.nonzero()[:, 0].tolist()
    for k, record in found.items():
        assert largest_gap(record, tree_rows(store.rows, k))[0] == 0.0
