"""`posterity flower new DIR`: an app folder that `flwr run` starts, in Flower's simulation or against a SuperLink.

    pyproject.toml   the app: its settings are the keys of `posterity run`
    LICENSE          Flower wants one
    NAME/            two modules of one line each

The app holds no code of ours: posterity must be installed where it runs, on the server and on every site. Its only
dependency is Flower itself, which Flower does not install, so that nothing is downloaded when a run begins.
"""

import keyword
import re
from pathlib import Path
from string import Template
from typing import Any

from posterity.settings.config import Config, literal, quoted, read_toml
from posterity.settings.hyperparameters import knobs

NAME = re.compile("[A-Za-z][A-Za-z0-9-]{0,31}")
WANTED = "flwr>=1.40,<1.43"
TEMPLATES = Path(__file__).parent / "templates"
SHOWN = ("method", "dataset", "clients", "model", "rounds", "lr", "participation", "seed", "dtype")


def write_app(folder: Path, config: Config, sites: int) -> list[Path]:
    """Write an app's folder; what is there already is not touched."""
    name = folder.resolve().name
    package = name.replace("-", "_").lower()
    if not NAME.fullmatch(name) or keyword.iskeyword(package):
        raise ValueError(f"{name!r}: Flower wants the name of an app to be a letter and letters, digits, hyphens (32)")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; nothing was written")
    usual, values = Config(), {knob.name: getattr(config, knob.name) for knob in knobs(Config)}
    given = {n: v for n, v in values.items() if v is not None and (n in SHOWN or v != getattr(usual, n))}
    settings = "\n".join(f"{name} = {literal(value)}" for name, value in given.items())
    chosen = "".join(f"{quoted(name)} = {literal(value)}\n" for name, value in config.set.items())
    chosen = f"\n[tool.flwr.app.config.set]\n{chosen}" if chosen else ""
    about = {"name": name, "package": package, "wanted": WANTED, "sites": str(sites)}
    files = {
        "pyproject.toml": _filled("pyproject", **about, settings=settings, chosen=chosen),
        "LICENSE": _filled("license"),
        f"{package}/__init__.py": f'"""{name}: posterity on Flower."""\n',
        f"{package}/server_app.py": _filled("module", side="server"),
        f"{package}/client_app.py": _filled("module", side="client"),
    }
    (folder / package).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in files]


def _filled(template: str, **words: str) -> str:
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(words)


def read_app(folder: Path) -> dict[str, Any]:
    """The run config of an app's folder, as Flower hands it to the apps."""
    try:
        table = dict(read_toml(folder / "pyproject.toml")["tool"]["flwr"]["app"]["config"])
    except KeyError:
        raise ValueError(f"{folder} holds no app of posterity's; 'posterity flower new DIR' writes one") from None
    chosen = table.pop("set", {})
    return {**table, **{f"set.{name}": value for name, value in chosen.items()}}
