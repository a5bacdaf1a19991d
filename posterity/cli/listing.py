"""Tables of what there is: methods with their hyper-parameters, datasets, networks, a federation's clients.

Besides, what other commands print as they go: the laws on a method of yours, each as it is tried (`check`), the trials
of a search and the file that `compare --tuned` takes (`tune`), what left a site (`flower sent`). Tables of results are
in `terminal.py`.
"""

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from posterity import data, laws, methods, models
from posterity.cli.terminal import COMPACT, LABEL, console, label, measured, print_rows, print_uncut, say, say_sentence
from posterity.core.passes import Training
from posterity.data.federation import Federation
from posterity.data.official import VARIABLE, DataSource, File, find_form
from posterity.data.registry import Dataset, data_folder, find_dataset, options
from posterity.experiment.tune import Budget, parzen, told, tune, with_tuned
from posterity.settings.config import Config, read_toml
from posterity.settings.hyperparameters import UNSTATED, Knob, knobs, nearest
from posterity.settings.text import paragraphs

MOST_CLASSES = 20  # of which a partition shows every one


def print_methods(name: str | None) -> None:
    if name is not None:
        _print_method(name.lstrip("+"))
        return
    known: Mapping[str, Any] = methods.available()
    print_rows("Methods", ("Method", "label", "scored at", "reference", "hyper-parameters"),
               ((key, cls.label, cls.scored, cls.reference, _shown(cls)) for key, cls in known.items()))  # fmt: skip
    print_rows("Wrappers", ("Suffix", "what it does", "hyper-parameters"),
               ((f"+{key}", first_line(cls), _shown(cls)) for key, cls in methods.suffixes().items()))  # fmt: skip
    print_rows("Names for specs", ("Name", "stands for", "reference"),
               ((key, each.describe(key), each.reference) for key, each in methods.names().items()))  # fmt: skip
    console.print("one in detail: posterity methods NAME; its training: --set local.NAME=VALUE; its paper: NAME@paper")


def _shown(cls: type) -> str:
    return ", ".join(f"{k.name}={k.default}" for k in knobs(cls) if k.name != "local")


def _print_method(word: str) -> None:
    name, _ = methods.split_preset(word)
    if name in methods.names() and name not in methods.suffixes():
        named = methods.names()[name]
        say_sentence(f"{named.describe(name)} ({named.label}; {named.reference})")
        name = named.needs
    cls = methods.suffixes().get(name) or methods.find(name)
    console.print(paragraphs((_class_doc(cls) or _module_doc(cls) or "").strip()), highlight=False, markup=False)
    trainings = [] if name in methods.suffixes() else methods.training_fields(cls)
    own = [k for k in knobs(cls) if k.name not in ("local", *trainings)]
    unnamed = "" if ":" in name else "ours"
    _print_knobs("Hyper-parameters (--set NAME=VALUE)", own, "", unnamed)
    for field in trainings:
        flags = ", or the flags" * (field == "local")
        title = f"Training of the clients (--set {field}.NAME=VALUE{flags})"
        _print_knobs(title, training_knobs(cls, field), f"{field}.", unnamed)


def training_knobs(cls: type, field: str = "local") -> list[Knob]:
    """The fields of Training with the default and the paper's value that this method has for them.

    A default that is not the one of Training has the source that the method names for it, if any.
    """
    local = next((k for k in knobs(cls) if k.name == field), None)
    if local is None:
        return []
    stated = local.default if local.paper is UNSTATED else local.paper
    found = []
    for knob in knobs(Training):
        default = getattr(local.default, knob.name)
        source = knob.source if default == knob.default else local.source
        found.append(replace(knob, default=default, paper=getattr(stated, knob.name), source=source))
    return found


def _print_knobs(title: str, found: list[Knob], prefix: str, unnamed: str) -> None:
    """A table of hyper-parameters, with `unnamed` where the source of a default is not said.

    What the paper states has a column where it states anything else.
    """
    if not found:
        return
    papers = any(knob.differs for knob in found)
    rows = []
    for knob in found:
        meaning = knob.doc + (f" ({', '.join(knob.choices)})" if knob.choices else "")
        paper = [knob.paper if knob.differs else ""] if papers else []
        rows.append((prefix + knob.name, knob.default, *paper, meaning, knob.source or unnamed))
    print_rows(title, ("name", "default", *(["@paper"] if papers else []), "meaning", "source of the default"), rows)


def _class_doc(cls: type) -> str | None:
    """What a class of yours says about itself; those of the package leave it to their file."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    ours = cls.__module__.startswith(f"{methods.__name__}.")
    return None if ours or doc.startswith(f"{cls.__name__}(") else doc  # Python writes the signature where none is


def _module_doc(cls: type) -> str | None:
    """What a method's file says about its paper, or the folder that holds all of it."""
    file, folder = cls.__module__, cls.__module__.rpartition(".")[0]
    full = folder and getattr(import_module(folder), cls.__name__, None) is cls
    return import_module(folder if full else file).__doc__


def first_line(cls: type) -> str:
    return (_module_doc(cls) or "").strip().split("\n")[0]


def print_datasets() -> None:
    rows = ((d.name, d.description, "yes" if d.natural else "",
             "in the package" if d.embedded else f"{VARIABLE} or --data-dir") for d in data.available())  # fmt: skip
    print_rows("Datasets", ("Dataset", "what it is", "own clients", "files"), rows)
    console.print("one in detail, with its files: posterity datasets NAME")
    console.print("mixes: a+b; your own: the path of an .npz, .csv, .parquet, or a folder of clients")


def print_dataset(name: str, given: str | None) -> None:
    dataset, folder = find_dataset(name), data_folder(given)
    console.print(paragraphs(dataset.text), highlight=False, markup=False)
    if known := options(name):
        say_sentence(f"Options (--set): {', '.join(f'data.{key}={value}' for key, value in known.items())}")
    if dataset.natural:
        say_sentence("It has clients of its own.")
    if dataset.source is None:
        say_sentence("It is part of the package and needs no files.")
        return
    _print_source(dataset, dataset.source, folder)


def _print_source(dataset: Dataset, source: DataSource, folder: Path | None) -> None:
    say_sentence(f"Official source: {source.url}")
    say("Forms in which it is read, in the order in which they are looked for; one is enough:")
    for form in source.forms:
        say(f"  {form.title}")
        for file in form.files:
            facts = [file.name, f"{file.size:,} bytes" * bool(file.size), file.checksum, _found(source, file, folder)]
            say("    " + ", ".join(fact for fact in facts if fact))
    home = folder or Path(f"${VARIABLE}")
    say_sentence(f"Put them into one of: {', '.join(str(home / name) for name in source.folders)}")
    if folder is None or not os.path.isdir(folder):
        say_sentence(f"There is no data folder: set the environment variable {VARIABLE}, or pass --data-dir")
    if source.advice:
        say_sentence(f"Also: {source.advice}")
    found = find_form(source, folder)
    read = f"{found.form.title} ({found.paths[0]})" if found else "nothing yet: no form is there completely"
    say_sentence(f"Read by --dataset {dataset.name}: {read}")


def _found(source: DataSource, file: File, folder: Path | None) -> str:
    """Where a file is, and whether it has the size that is published."""
    for place in source.places(folder):
        path = place / file.name
        if os.path.isdir(path):
            return f"found in {place}"
        if os.path.exists(path):
            size = path.stat().st_size
            differs = f" with {size:,} bytes, not as published" if file.size and size != file.size else ""
            return f"found in {place}{differs}"
    return "not found"


def print_models(name: str | None) -> None:
    if name is not None:
        _print_model(name)
        return
    rows = ((each.name, each.summary, ", ".join(f"{option}={default}" for option, default in each.options.items()))
            for each in models.available())  # fmt: skip
    print_rows("Networks", ("Network", "what it is", "options (--set model.NAME=VALUE)"), rows)
    console.print("one in detail: posterity models NAME; your own: --model package.module:make")


def _print_model(name: str) -> None:
    known = {each.name: each for each in models.available()}
    if name not in known:
        raise ValueError(f"there is no network {name!r}: {nearest(name, known)}; your own: --model package.module:make")
    network = models.networks()[name]
    console.print(paragraphs(inspect.cleandoc(network.__doc__ or "")), highlight=False, markup=False)
    if not known[name].options:
        console.print("It has no options.")
        return
    meanings = comments(network)
    rows = ((f"model.{option}", value, meanings.get(option, "")) for option, value in known[name].options.items())
    print_rows("Options (--set model.NAME=VALUE)", ("name", "default", "meaning"), rows)


def comments(function: Any) -> dict[str, str]:
    """What stands behind each parameter of a function in its source: networks say there what an option means."""
    lines = re.findall(r"^ +(\w+): [^#\n]*,  # (.*)$", inspect.getsource(function), re.MULTILINE)
    return {name: comment.partition("  # ")[0] for name, comment in lines}


def print_partition(federation: Federation) -> None:
    """Samples of every client, and of every class where there are few; no number is cut."""
    parts = (("train", federation.train), ("val.", federation.validation), ("test", federation.test))
    columns = [(head, part.sizes.tolist()) for head, part in parts]
    if federation.classes:
        histogram = federation.histogram(federation.train)
        names = federation.class_names or map(str, range(federation.classes))
        few = federation.classes <= MOST_CLASSES
        columns += zip(names, histogram.T.tolist(), strict=True) if few else []
        columns += [] if few else [("classes", (histogram > 0).sum(1).tolist())]
    table = Table(title=f"{label(federation.name)}: {federation.clients} clients", **COMPACT)
    table.add_column("Client", max_width=LABEL, overflow="fold")
    for head, _ in columns:
        table.add_column(label(head), justify="right", no_wrap=True)
    clients = [name + " (newcomer)" * (k >= federation.members) for k, name in enumerate(federation.names)]
    for client, *counts in zip(clients, *(column for _, column in columns), strict=True):
        table.add_row(label(client), *map(str, counts))
    print_uncut(table, measured(table).maximum)
    for note in (*federation.notes, *unseen_note(federation)):
        say_sentence(f"note: {note}")


def unseen_note(federation: Federation) -> tuple[str, ...]:
    """How many test rows are of classes that their client has training rows of, unless all are: what a model that a
    client learns from its own rows alone gets right at best, weighted as accuracy is by `train_weighted`."""
    if not federation.classes:
        return ()
    seen = federation.seen(federation.test)
    asked = ~seen.isnan()
    members = torch.arange(federation.clients) < federation.members
    if not (asked & members).any() or bool((seen[asked] == 1).all()):
        return ()
    weight = federation.train.counts.to(seen)

    def percent(who: Tensor) -> str:
        return f"{100 * float((seen[who] * weight[who]).sum() / weight[who].sum()):.1f} %"

    newcomers = asked & ~members
    of_newcomers = f" (newcomers: {percent(newcomers)})" * bool(newcomers.any())
    return (f"clients have training rows of the class of {percent(asked & members)} of their test rows{of_newcomers}; "
            "means over clients, weighted by their training rows",)  # fmt: skip


def print_verdicts(method: str, model: str) -> bool:
    made = methods.build(method)
    say(f"{method} with {model}: {len(laws.LAWS)} laws, from cause to consequence")
    verdicts = laws.check(made, model, watch=_print_verdict)
    broken = [v.law for v in verdicts if not v.held and not v.follows]
    skipped = sum(bool(v.follows) for v in verdicts)
    text = f"{sum(v.held for v in verdicts)} of {len(verdicts)} laws hold"
    text += f", {len(broken)} broken ({', '.join(broken)})" if broken else ""
    say(text + (f", {skipped} not tried: mend {broken[0]!r} first" if skipped else ""))
    return not broken and not skipped


def _print_verdict(verdict: laws.Verdict) -> None:
    if verdict.follows:
        if verdict.follows not in laws.ROOTS:  # one sentence at the end says it of all of them
            console.print(f"  {verdict.law:<14} [dim]not tried: follows from {verdict.follows}[/dim]", highlight=False)
        return
    word = "[green]holds[/green] " if verdict.held else "[red]broken[/red]"
    console.print(f"  {verdict.law:<14} {word} {verdict.seconds:5.1f} s", highlight=False)
    for line in [] if verdict.held else verdict.detail.splitlines():
        say(f"    {line.strip()}")


def tune_all(
    config: Config, names: Sequence[str], seeds: Sequence[int], trials: int, search_seed: int, folder: Path, quiet: bool
) -> None:
    budget = Budget(trials, tuple(seeds), search_seed)
    suggest = parzen(budget.seeds, search_seed)
    path = tune(config, names, budget, folder, suggest, tell=(lambda line: None) if quiet else say)
    rows = ((name, f"{each['value']:.4g}", f"{each['default']:.4g}", f"{each['trial']} of {each['trials']}",
             told(each["set"])) for name, each in read_toml(path)["methods"].items())  # fmt: skip
    print_rows("Tuned", ("Method", "validation", "with defaults", "trial", "chosen"), rows)
    say(f"use it: posterity compare --tuned {path} --methods {','.join(names)} (with seeds that did not choose it)")


def take_tuned(names: Sequence[str], config: Config, path: Path) -> list[str]:
    found, remarks = with_tuned(names, config, path)
    for remark in remarks:
        say_sentence(f"note: {remark}")
    return found


def print_sent(path: Path, leaves: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for leaf in leaves:
        first, last = leaf["rounds"]
        count = "no samples, or unknown" if leaf["count"] is None else leaf["count"]
        rows.append(
            (leaf["leaf"], first if first == last else f"{first} … {last}", leaf["times"], leaf["bytes"], count)
        )
    print_rows("What left this site", ("Leaf", "rounds", "times", "bytes", "smallest count behind it"), rows)
    total = sum(leaf["bytes"] for leaf in leaves)
    say_sentence(f"{total} bytes in all; round 0 is registration; each single one of them: {path}")
