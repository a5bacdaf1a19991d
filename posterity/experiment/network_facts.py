"""The network of a run: what `run.json` says of it, and whether a run that goes on has the same one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.data.preprocess import fingerprint

if TYPE_CHECKING:
    from posterity.experiment.setup import Setup


def network_facts(setup: Setup) -> dict[str, Any]:
    """Its name, its size, and a fingerprint of the first weights where no seed could make them again."""
    sim = setup.sim
    kept = not getattr(sim.model, "fresh", True)
    return {
        "name": sim.model.name,
        "numbers": sum(leaf.numel() for leaf in sim.initial.values()),
        "weights": fingerprint(tuple(sim.initial.values())) if kept else None,
    }


def check_network(before: dict[str, Any], setup: Setup, out: Path) -> None:
    """Refuse to go on with another network than the run began with; folders of before say nothing."""
    now = network_facts(setup)
    if not before or before == now:
        return
    was, here = (f"{told['name']!r} with {told['numbers']:,} numbers" for told in (before, now))
    if was == here:
        raise ValueError(
            f"{out} was begun with other weights of the network {was}: a module that is handed over keeps the weights "
            "that it comes with. Give it those that it had (load_state_dict), or begin again with its class"
        )
    raise ValueError(
        f"{out} was run with the network {was}; here it is {here}: hand over the one that it had "
        "(posterity.load(folder, model=…)); if the file that makes it was changed, put the old one back"
    )
