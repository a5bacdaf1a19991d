"""`posterity flower new DIR`: an app folder that `flwr run` starts, in Flower's simulation or against a SuperLink.

    pyproject.toml   the app: its settings are the keys of `posterity run`
    LICENSE          Flower wants one
    NAME/            two modules of one line each

The app holds no code of ours: posterity must be installed where it runs, on the server and on every site. Its only
dependency is Flower itself, which Flower does not install, so that nothing is downloaded when a run begins.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Any

from posterity.settings.config import Config, literal, quoted, read_toml
from posterity.settings.hyperparameters import knobs

NAME = re.compile("[A-Za-z][A-Za-z0-9-]{0,31}")
WANTED, TARGET = "flwr>=1.40,<1.43", "1.41.0"
PYPROJECT = """[project]
name = "{name}"
version = "0.1.0"
description = "posterity on Flower"
license = {{ file = "LICENSE" }}
dependencies = ["{wanted}"]  # posterity is installed on server and sites; nothing is fetched when a run begins

[tool.flwr.app]
publisher = "posterity"
fab-format-version = 1
flwr-version-target = "{target}"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# The keys of `posterity run`. A key that `flwr run -c 'key=value'` is to change must stand here.
[tool.flwr.app.config]
{settings}
experiment = "{name}"  # under this name sites keep their records, and a run goes on
out = "{out}"  # the server's folder: its state after every round, and metrics.jsonl
sites = {sites}  # that must be there before round 1
deadline = 3600  # seconds until a reply is given up
minimum = "50%"  # usable replies that a round needs, of its cohort: a share or a number
tries = 3  # how often those whose reply is missing are asked, until the run stops; it goes on when it is started again
leave = ""  # names of clients, with commas between, that go for good
{chosen}"""
LICENSE = """The files of this folder may be used, copied and changed by anyone for any purpose.
They come without warranty of any kind.
"""
MODULE = '''"""The {side}: all of it is in posterity."""

from posterity.flower.app import {side}_app as app

__all__ = ["app"]
'''
SHOWN = ("method", "dataset", "clients", "model", "rounds", "lr", "participation", "seed", "dtype")


def write_app(folder: Path, config: Config, sites: int) -> list[Path]:
    """Write an app's folder; what is there already is not touched."""
    name = folder.resolve().name
    package = name.replace("-", "_").lower()
    if not NAME.fullmatch(name) or keyword.iskeyword(package):
        raise ValueError(f"the folder is called {name!r}; Flower wants the name of an app to begin with a letter and "
                         "to have letters, digits and hyphens, 32 at most: 'my-app'")  # fmt: skip
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; nothing was written")
    usual, values = Config(), {knob.name: getattr(config, knob.name) for knob in knobs(Config)}
    given = {n: v for n, v in values.items() if v is not None and (n in SHOWN or v != getattr(usual, n))}
    settings = "\n".join(f"{name} = {literal(value)}" for name, value in given.items())
    chosen = "".join(f"{quoted(name)} = {literal(value)}\n" for name, value in config.set.items())
    chosen = f"\n[tool.flwr.app.config.set]\n{chosen}" if chosen else ""
    text = PYPROJECT.format(name=name, package=package, wanted=WANTED, target=TARGET, out=f"runs/{name}", sites=sites,
                            settings=settings, chosen=chosen)  # fmt: skip
    files = {
        "pyproject.toml": text,
        "LICENSE": LICENSE,
        f"{package}/__init__.py": f'"""{name}: posterity on Flower."""\n',
        f"{package}/server_app.py": MODULE.format(side="server"),
        f"{package}/client_app.py": MODULE.format(side="client"),
    }
    (folder / package).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in files]


def read_app(folder: Path) -> dict[str, Any]:
    """The run config of an app's folder, as Flower hands it to the apps: without tables inside tables."""
    try:
        table = dict(read_toml(folder / "pyproject.toml")["tool"]["flwr"]["app"]["config"])
    except KeyError:
        raise ValueError(f"{folder} holds no app of posterity's; 'posterity flower new DIR' writes one") from None
    chosen = table.pop("set", {})
    return {**table, **{f"set.{name}": value for name, value in chosen.items()}}
