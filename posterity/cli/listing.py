"""Tables of what there is: methods with their hyper-parameters, datasets, a federation's clients.

Tables of results are in `cli/show.py`.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from rich.markup import escape
from rich.table import Table

from posterity import data, methods
from posterity.cli.show import console
from posterity.core.hyperparameters import UNSTATED, Knob, knobs
from posterity.core.training import Training
from posterity.data.federation import Federation


def print_methods(name: str | None) -> None:
    """All methods and wrappers, or everything about one."""
    if name is not None:
        _print_method(name.lstrip("+"))
        return
    table = Table(
        "Method", "label", "scored at", "reference", "hyper-parameters", title="Methods", title_justify="left"
    )
    for key, cls in methods.available().items():
        names = ", ".join(f"{k.name}={k.default}" for k in knobs(cls) if k.name != "local")
        table.add_row(key, cls.label, cls.scored, cls.reference, names)  # type: ignore[attr-defined]
    console.print(table)
    table = Table("Suffix", "what it does", "hyper-parameters", title="Wrappers", title_justify="left")
    for key, cls in methods.suffixes().items():
        names = ", ".join(f"{k.name}={k.default}" for k in knobs(cls))
        table.add_row(f"+{key}", _first_line(cls), names)
    console.print(table)
    console.print("one in detail: posterity methods NAME; its training: --set local.NAME=VALUE; its paper: NAME@paper")


def _print_method(word: str) -> None:
    name, _ = methods.split_preset(word)
    cls = methods.suffixes().get(name) or methods.find(name)
    console.print(escape((_module_doc(cls) or "").strip()), highlight=False)
    own = [k for k in knobs(cls) if k.name != "local"]
    _print_knobs("Hyper-parameters (--set NAME=VALUE)", own, "")
    if name not in methods.suffixes():
        title = "Training of the clients (--set local.NAME=VALUE, or the flags)"
        _print_knobs(title, _training_knobs(cls), "local.")


def _training_knobs(cls: type) -> list[Knob]:
    """The fields of Training with the default and the paper's value that this method has for them."""
    local = next((k for k in knobs(cls) if k.name == "local"), None)
    if local is None:
        return []
    stated = local.default if local.paper is UNSTATED else local.paper
    return [replace(k, default=getattr(local.default, k.name), paper=getattr(stated, k.name)) for k in knobs(Training)]


def _print_knobs(title: str, found: list[Knob], prefix: str) -> None:
    """A table of hyper-parameters; what the paper states has a column where it states anything else."""
    if not found:
        return
    papers = any(knob.differs for knob in found)
    heads = ("name", "default", *(["@paper"] if papers else []), "meaning", "source of the default")
    table = Table(*heads, title=title, title_justify="left")
    for knob in found:
        meaning = knob.doc + (f" ({', '.join(knob.choices)})" if knob.choices else "")
        paper = [str(knob.paper) if knob.differs else ""] if papers else []
        table.add_row(prefix + knob.name, str(knob.default), *paper, escape(meaning), escape(knob.source or "ours"))
    console.print(table)


def _module_doc(cls: type) -> str | None:
    """What a method's file says about its paper, or the folder that holds all of it."""
    file, folder = cls.__module__, cls.__module__.rpartition(".")[0]
    full = folder and getattr(import_module(folder), cls.__name__, None) is cls
    return import_module(folder if full else file).__doc__


def _first_line(cls: type) -> str:
    return (_module_doc(cls) or "").strip().split("\n")[0]


def print_datasets() -> None:
    table = Table("Dataset", "what it is", "own clients", "files", title="Datasets", title_justify="left")
    for d in data.available():
        table.add_row(d.name, escape(d.description), "yes" if d.natural else "", "in the package" if d.embedded else
                      "POSTERITY_DATA or --data-dir")  # fmt: skip
    console.print(table)
    console.print("mixes: a+b; your own: the path of an .npz, .csv, .parquet, or a folder of clients")


def print_partition(federation: Federation) -> None:
    """Samples of every client, and of every class where there are few."""
    wide = 0 < federation.classes <= 20
    names = federation.class_names or tuple(str(c) for c in range(federation.classes))
    table = Table("Client", "train", "validation", "test", *(names if wide else ("classes",)),
                  title=f"{federation.name}: {federation.clients} clients", title_justify="left")  # fmt: skip
    histogram = federation.histogram(federation.train) if federation.classes else None
    for k in range(federation.clients):
        counts = [int(p.counts[k]) for p in (federation.train, federation.validation, federation.test)]
        cells: list[Any] = []
        if histogram is not None:
            cells = [int(c) or "" for c in histogram[k]] if wide else [int((histogram[k] > 0).sum())]
        late = " (newcomer)" if k >= federation.members else ""
        table.add_row(escape(federation.names[k]) + late, *(str(v) for v in (*counts, *cells)))
    console.print(table)
    for note in federation.notes:
        console.print(f"note: {escape(note)}")
