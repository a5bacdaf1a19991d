"""`posterity datasets NAME`: what a dataset is, where its files come from, where they belong, and which are there."""

from __future__ import annotations

import os
from pathlib import Path

from posterity.cli.neutral import paragraphs
from posterity.cli.show import console, say, say_sentence
from posterity.data.registry import Dataset, data_folder, find_dataset, options
from posterity.data.source import VARIABLE, DataSource, File, find_form


def print_dataset(name: str, given: str | None) -> None:
    """Everything about one dataset."""
    dataset, folder = find_dataset(name), data_folder(given)
    console.print(paragraphs(dataset.text), highlight=False, markup=False)
    if known := options(name):
        shown = ", ".join(f"data.{key}={value}" for key, value in known.items())
        say_sentence(f"Options (--set): {shown}")
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
    if folder is None:
        say_sentence(f"No data folder is given: set the environment variable {VARIABLE}, or pass --data-dir")
    elif not os.path.isdir(folder):
        say_sentence(f"The data folder {folder} does not exist: create it, or point {VARIABLE} or --data-dir elsewhere")
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
