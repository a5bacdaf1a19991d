"""`run.json` in the server's folder: what `posterity report` wants to know of a run beside its lines.

It is that of a simulation as far as a server knows it. How many rows sites hold out, and how many samples of each class
they have, it does not.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from posterity.experiment import run_folder, verify
from posterity.experiment.config import to_toml
from posterity.experiment.fingerprint import sources
from posterity.experiment.integrity import checksum_of
from posterity.experiment.run import ACROSS_MACHINES
from posterity.experiment.run_facts import method_facts, software_facts
from posterity.experiment.scoring import fits_validation
from posterity.flower.server import Server


def begin_facts(server: Server, notes: list[str]) -> None:
    """`run.json` and `config.toml` of a new run."""
    config, agreement = server.config, server.agreement
    method = agreement.method
    facts = {
        **software_facts(),
        "threads": torch.get_num_threads(),
        "engine": ACROSS_MACHINES,
        "command": " ".join(sys.argv),
        "method": method_facts(config, method, fits_validation([agreement.prepare()])),
        "sources": sources(config, method),
        "notes": notes,
        "federation": _federation(server),
    }
    verify.write_run(server.folder, facts, to_toml(config))


def update_facts(server: Server) -> None:
    """`run.json` once more, where somebody came late or the run has ended."""
    path = server.folder / run_folder.RUN
    if not path.exists():  # begun before servers wrote one
        begin_facts(server, [])
    before = run_folder.read_json(path)
    now = {**before, "federation": _federation(server)}
    now.pop("without_final_model", None)
    if server.finished:
        metrics = server.folder / run_folder.METRICS
        now |= {"status": "finished", "checksums": {**before["checksums"], metrics.name: checksum_of(metrics)}}
        now |= {"without_final_model": server.lacking} if server.lacking else {}
    if now != before:
        run_folder.write_json(path, now)


def _federation(server: Server) -> dict[str, Any]:
    kind, groups = server.agreement.kind, server.roster.groups()
    clients = [client for group in groups.values() for client in group]
    members, newcomers = (len(group) for group in groups.values())
    return {
        "name": f"data of {len(clients)} sites",
        "task": kind.task,
        "clients": len(clients),
        "members": members,
        "newcomers": newcomers,
        "classes": len(kind.classes),
        "class_names": list(kind.classes),
        "names": [client.name for client in clients],
        "train": [client.train for client in clients],
        "notes": [],
    }


__all__ = ["begin_facts", "update_facts"]
