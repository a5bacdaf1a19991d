"""From a configuration (`settings/config.py`) to what a run works on, and the facts of its folder."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from posterity import data, methods, models
from posterity.core.network import Network, bind
from posterity.core.protocol import Plan
from posterity.core.random import make_key
from posterity.core.tree import Tree
from posterity.data.federation import Federation, FederationSpec, check_federation
from posterity.data.official import find_form
from posterity.data.registry import data_folder, find_dataset
from posterity.engine.augment import Augmentation
from posterity.engine.blocks import able, footprint, out_of_memory, receive_stack
from posterity.engine.choose import EngineChoice, Wish, at_work, choose
from posterity.engine.engines import Engine
from posterity.engine.participation import Participation
from posterity.engine.process_settings import ProcessSettings
from posterity.engine.processes import find_processes
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.evaluate import Metric, check_task, load_metrics
from posterity.experiment.facts import method_facts, network_facts, software_facts
from posterity.experiment.fingerprint import sources
from posterity.experiment.schedule import Schedule
from posterity.experiment.scoring import fits_validation
from posterity.settings.config import Config

ROOM = 2**30  # bytes for stacked clients on a CPU
GPU_SHARE = 3  # one part in so many of a GPU's memory
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Setup:
    """What a run works with; `settings` are in force while it does."""

    sim: Simulation
    choice: EngineChoice
    settings: ProcessSettings
    metrics: tuple[Metric, ...]  # of your own
    schedule: Schedule  # when whom to evaluate
    said: tuple[str, ...]  # what the name of the method stands for, and what happens to its samples
    plan: Plan

    @property
    def engine(self) -> Engine:
        return self.choice.engine

    @property
    def remark(self) -> str:
        """Why this engine, if clients run one by one."""
        return self.choice.remark

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results must know about this network, and this method with it.

        A method that refuses a run of this size does so here.
        """
        model, method = self.sim.model, self.sim.method
        return (*getattr(model, "notes", ()), *self.said, *method.remarks(model), *method.announce(self.plan))


def load_federation(config: Config) -> Federation:
    """The federation of a configuration; the seed moves the partition unless `data_seed` fixes it."""
    seed = config.seed if config.data_seed is None else config.data_seed
    asked = {f.name: getattr(config, f.name) for f in fields(FederationSpec) if f.name not in ("seed", "options")}
    return data.build(FederationSpec(**asked, seed=seed, options=config.settings("data")))


def has_files(config: Config) -> bool:
    """Whether the files of all its data sets, which it names, are here."""
    sources = [find_dataset(name).source for name in config.dataset.split("+")]
    return all(source is None or find_form(source, data_folder(config.data_dir)) for source in sources)


def set_up(
    config: Config,
    federation: Federation | None = None,
    model: Network | None = None,
    threads: int | None = None,
) -> Setup:
    """Everything a run needs; a federation or a model of your own may be handed in.

    `threads` are those of a run that is resumed.
    """
    _check_device(config.device)
    metrics = load_metrics(config.metrics)
    processes, device = find_processes(config.device)
    if processes.size > 1 and config.store == "disk":
        raise ValueError("personal records on disk belong to one process: use --store memory with several")
    federation = load_federation(config) if federation is None else check_federation(federation)
    check_task(metrics, federation.task, federation.classes)
    augment = Augmentation.parse(config.augment, federation)
    dtype = DTYPES[config.dtype]
    given = config.model if model is None else model
    options = config.settings("model") if model is None else {}
    model = models.as_network(given, federation.shape, federation.classes, federation.task, options, federation.x)
    model = model.with_compute_dtype(torch.bfloat16) if config.precision == "bf16" else model
    model, initial = bind(model, {n: p.to(device) for n, p in model.init(config.seed, dtype).items()})
    method = methods.build(config.method, config.settings(), config.training(), config.least)
    federation = _on_device(federation, device, dtype)
    few = federation.x[:2]
    wish = Wish(config.engine, config.convolution, config.onednn)
    batch = next((p.batch for p in method.passes() if p.learns and p.batch), 10)
    settings = ProcessSettings(tf32=config.precision == "tf32", threads=threads)
    plan = _plan(config, federation)
    with settings.applied():
        busy = at_work(federation.train.sizes[: federation.members], batch, plan.cohort)
        choice = choose(wish, model, few, initial, batch, busy)
    settings = replace(settings, onednn=choice.onednn)
    root, processes = make_key(config.seed, device), processes.dealt(federation.train.counts, federation.members)
    sample, memory = footprint(choice.model, few, initial), config.memory or _room(device)
    sim = Simulation(method, choice.model, federation, initial, root, memory, sample, processes, augment=augment,
                     min_count=config.least)  # fmt: skip
    said = (*methods.tell_name(config.method), *([augment.remark] if augment else []))
    return Setup(sim, choice, settings, metrics, Schedule.of(config, sim), said, plan)


def _on_device(federation: Federation, device: str, dtype: torch.dtype) -> Federation:
    try:
        return federation.to(device, dtype)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        size = federation.x.numel() * dtype.itemsize
        raise ValueError(
            f"the {len(federation.x):,} rows of {federation.name} ({size:,} bytes) do not fit into the memory of "
            f"{device}: take fewer (--subset), end other programs there, or use another --device "
            f"({str(error).splitlines()[0]})"
        ) from None


def _plan(config: Config, federation: Federation) -> Plan:
    """How large a run is going to be."""
    participation, members = Participation.parse(config.participation), federation.members
    able = int((federation.train.sizes[:members] > 0).sum())
    return Plan(members, config.rounds, participation.size(able), participation.probability)


def _room(device: str) -> int:
    """Bytes for stacked clients: what is free would differ from run to run, and with it the last bit."""
    if not device.startswith("cuda"):
        return ROOM
    return int(torch.cuda.get_device_properties(device).total_memory) // GPU_SHARE


def records_like(setup: Setup, state: Tree) -> Tree:
    """A stack of one record, in the shape that `join` gives them; nothing of it is kept."""
    sim = setup.sim
    here, _ = receive_stack(sim, setup.engine, state, Store(sim.federation.clients), able(sim)[:1], 1)
    return here.personal


def describe(config: Config, setup: Setup, command: str) -> dict[str, Any]:
    """What `run.json` says about a run: versions, method, federation."""
    method, federation = setup.sim.method, setup.sim.federation
    return {
        **software_facts(),
        "threads": setup.settings.threads or torch.get_num_threads(),
        "processes": setup.sim.processes.size,
        "device": _device_name(config.device),
        "engine": setup.engine.name,
        "engine_remark": setup.remark,
        "convolution": setup.sim.model.conv_backend,
        "onednn": "on" if setup.choice.onednn else "off",
        "precision": config.precision,
        "memory": setup.sim.memory,
        "evaluate_every": setup.schedule.every,
        "evaluate_clients": setup.schedule.clients,
        "evaluate_remark": setup.schedule.remark,
        "command": command,
        "method": method_facts(config, method, fits_validation([setup.sim.prepare()])),
        "sources": sources(config, method),
        "notes": list(setup.notes),
        "network": network_facts(setup.sim),
        "federation": federation_facts(federation),
        **({"metrics": [metric.facts() for metric in setup.metrics]} if setup.metrics else {}),
    }  # fmt: skip


def federation_facts(federation: Federation) -> dict[str, Any]:
    """What `run.json` says of the clients: names, sizes of their parts, training samples of each class."""
    two_way = federation.task == "classification"
    return {
        "name": federation.name,
        "task": federation.task,
        "clients": federation.clients,
        "members": federation.members,
        "newcomers": federation.clients - federation.members,
        "classes": federation.classes,
        "class_names": list(federation.class_names),
        "names": list(federation.names),
        "train": federation.train.counts.tolist(),
        "validation": federation.validation.counts.tolist(),
        "test": federation.test.counts.tolist(),
        "histogram": federation.histogram(federation.train).tolist() if two_way else [],
        "partition": None if federation.partition is None else federation.partition.facts(),
        "public": 0 if federation.public is None else len(federation.public),
        "notes": list(federation.notes),
    }


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is not understood; give cpu, cuda or cuda:1") from None
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        seen = f"only {count} here" if count else "no GPU here"
        raise ValueError(f"device {name!r} was asked for, but PyTorch sees {seen}; use another number, or --device cpu")


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
