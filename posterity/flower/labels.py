"""Labels that sites write in different ways: nobody sees two sites' files side by side, so the server remarks on it."""

from __future__ import annotations

from collections.abc import Sequence

from posterity.data.checks import alike
from posterity.flower.roster import Registered

SHOWN = 5  # names in a list


def label_remarks(clients: Sequence[Registered], classes: tuple[str, ...]) -> list[str]:
    """What to say about the classes that were put together of what clients named."""
    return [*alike(classes, "classes"), *_apart(clients)]


def _apart(clients: Sequence[Registered]) -> list[str]:
    """A remark where sites fall into groups that have no class in common: the same classes under other names?"""
    groups: list[tuple[list[str], set[str]]] = []
    for client in clients:
        names, labels = [client.name], set(client.kind.classes)
        touching = [group for group in groups if group[1] & labels]
        for group in touching:
            names, labels = group[0] + names, labels | group[1]
        if labels:
            groups = [group for group in groups if group not in touching] + [(names, labels)]
    if len(groups) < 2:
        return []
    told = "; ".join(f"{_listed(sorted(labels))} at {_listed(names)}" for names, labels in groups)
    return [f"sites have no class in common ({told}): write the labels alike if they mean the same, for all are "
            "classes of the network"]  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


__all__ = ["label_remarks"]
