"""The network of a run: what `run.json` says of it, and whether a run that goes on has the same one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.core.frozen import held
from posterity.data.preprocess import fingerprint

if TYPE_CHECKING:
    from posterity.experiment.setup import Setup


def network_facts(setup: Setup) -> dict[str, Any]:
    """Its name, its size, and a fingerprint of weights that no seed could make again, or that no checkpoint holds."""
    sim, still = setup.sim, held(setup.sim.model)
    kept, leaves = not getattr(sim.model, "fresh", True), {**sim.initial, **still}
    facts = {
        "name": sim.model.name,
        "numbers": sum(leaf.numel() for leaf in leaves.values()),
        "weights": fingerprint(tuple(leaves.values())) if kept else None,
    }
    frozen = {"numbers": sum(leaf.numel() for leaf in still.values()), "weights": fingerprint(tuple(still.values()))}
    return {**facts, "frozen": frozen} if still else facts


def _in_words(told: dict[str, Any]) -> str:
    frozen = f", {told['frozen']['numbers']:,} of them frozen" if told.get("frozen") else ""
    return f"{told['name']!r} with {told['numbers']:,} numbers{frozen}"


def check_network(before: dict[str, Any], setup: Setup, out: Path) -> None:
    """Refuse to go on with another network than the run began with; folders of before say nothing."""
    now = network_facts(setup)
    if not before or before == now:
        return
    was, here = (_in_words(told) for told in (before, now))
    if was == here:
        raise ValueError(
            f"{out} was begun with other weights of the network {was}: a module that is handed over keeps the weights "
            "that it comes with, and frozen ones are never saved. Give it those that it had (load_state_dict), or "
            "begin again with its class"
        )
    raise ValueError(
        f"{out} was run with the network {was}; here it is {here}: hand over the one that it had "
        "(posterity.load(folder, model=…)); if the file that makes it was changed, put the old one back"
    )
