"""Whether what a run was made with is still the same: hyper-parameters, and the source of what made the numbers.

A source is a module; its fingerprint is that of its code without comments, docstrings and layout. Those that count are
the method's (its classes and what they are built upon), those of a network, dataset, partition, metric or engine of
your own, and whatever these import from beside them: of a package its modules, of a single file the files of its
folder. What methods have in common, `posterity.core`, counts as one.
"""

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from posterity import core, methods
from posterity.data.partition import RULES
from posterity.data.user_files import looks_like_path
from posterity.runs.files import clean
from posterity.settings.config import Config
from posterity.settings.hyperparameters import split_name

OURS = "posterity"
CORE = core.__name__
DIGITS = 16  # of SHA-256, in hexadecimal
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources(config: Config, method: Any = None) -> dict[str, str]:
    """The fingerprints of the modules that a run's numbers depend on, by their names."""
    method = _built(config) if method is None else method
    found: dict[str, str] = {CORE: _core()}
    for module in [*_classes(method), *_modules(config)]:
        _gather(module, _file(module), found)
    return dict(sorted(found.items()))


def tell_changes(facts: Mapping[str, Any], config: Config) -> list[str]:
    """What has changed since a run with these facts (run.json) began, in words."""
    method = _built(config)
    before, now = facts["method"]["fields"], clean(fields_of(method))
    was, here = facts["sources"], sources(config, method)
    told = [f"{n} was {before[n]} and is {now[n]} now" for n in before if n in now and before[n] != now[n]]
    told += [f"{n} is new ({now[n]})" for n in now if n not in before]
    told += [f"{n} is gone" for n in before if n not in now]
    names = [n for n in sorted({*was, *here}) if was.get(n) != here.get(n)]
    return told + ([f"the source of {', '.join(names)} was edited"] if names else [])


def _built(config: Config) -> Any:
    return methods.build(config.method, config.settings(), config.training(), config.least)


def fields_of(method: Any) -> dict[str, Any]:
    """Every hyper-parameter that is in force, wrappers and training included."""
    found: dict[str, Any] = {}
    for name, value in vars(method).items():
        if hasattr(value, "__dataclass_fields__"):
            found |= {f"{name}.{inner}": v for inner, v in fields_of(value).items()}
        elif all(isinstance(v, (str, int, float, bool, type(None)))
                 for v in (value if isinstance(value, tuple) else (value,))):  # fmt: skip
            found[name] = value
    return found


def _classes(method: Any) -> Iterator[str]:
    """The modules of a method's class and of what it wraps."""
    yield type(method).__module__
    for value in vars(method).values():
        if hasattr(value, "__dataclass_fields__"):
            yield from _classes(value)


def outside_names(config: Config) -> dict[str, str]:
    """What a configuration takes from modules of the user's own: setting → `package.module:attribute`."""
    rule = config.partition or ""  # one of ours has numbers behind a colon
    found = {
        "method": next((word for word in config.method.split("+") if ":" in word), ""),
        "dataset": config.dataset if ":" in config.dataset and not looks_like_path(config.dataset) else "",
        "partition": rule if ":" in rule and split_name(rule)[0] not in RULES else "",
        "model": config.model if ":" in config.model else "",
        "engine": config.engine if ":" in config.engine else "",
        "metrics": config.metrics or "",
    }
    return {setting: name for setting, name in found.items() if name}


def _modules(config: Config) -> Iterator[str]:
    for names in outside_names(config).values():
        for name in names.replace("+", ",").split(","):
            if ":" in name:
                yield name.partition(":")[0].strip()


def _gather(name: str, path: Path | None, found: dict[str, str]) -> None:
    """A module and what it imports from its own room, into `found`."""
    if path is None or name in found or _shared(name):
        return
    found[name], imports = _parsed(path, path.stat().st_mtime_ns, path.stat().st_size)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    base = path.parents[name.count(".") + (path.name == "__init__.py")]  # where its outermost package lies
    for level, wanted in sorted(imports):
        above = package.rsplit(".", level - 1)[0] if level else ""
        other = f"{above}.{wanted}" if above and wanted else above or wanted
        for each in (other, other.rpartition(".")[0]):  # `from a.b import c`: a module c, or something in a.b
            _gather(each, _beside(name, each, base), found)


def _shared(name: str) -> bool:
    """Whether a module is no method's own: part of the core or of other rooms of ours, or of Python."""
    top = name.partition(".")[0]
    return (top == OURS and not name.startswith(f"{methods.__name__}.")) or top in sys.stdlib_module_names


def _beside(name: str, other: str, base: Path) -> Path | None:
    """The file of a module that another imports, if it is of the same room: the same package, or the same folder."""
    if not other:
        return None
    tops = [each.partition(".")[0] for each in (name, other)]
    if tops[1] == OURS:
        base = Path(methods.__file__).parents[2]
    elif tops[0] != tops[1] and base in _libraries():  # where all packages live
        return None
    return _at(base, other)


def _at(base: Path, name: str) -> Path | None:
    """The file of a module whose outermost package lies in `base`."""
    place = base.joinpath(*name.split("."))
    return next((path for path in (place.with_name(f"{place.name}.py"), place / "__init__.py") if path.is_file()), None)


@cache
def _libraries() -> frozenset[Path]:
    return frozenset(Path(path).resolve() for path in sysconfig.get_paths().values())


def _file(name: str) -> Path | None:
    """The file of a module, found as `settings/plugins.py` finds it; but nothing is imported."""
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is not None:
        return Path(path).resolve() if path.endswith(".py") and Path(path).exists() else None
    top = name.partition(".")[0]
    above = getattr(sys.modules.get(top), "__path__", None)
    places = [os.getcwd(), *sys.path] if above is None else [Path(place).parent for place in above]
    return next((path for place in places if (path := _at(Path(place or ".").resolve(), name)) is not None), None)


@cache
def _core() -> str:
    """One fingerprint of all that methods have in common."""
    files = sorted(Path(core.__file__).parent.glob("*.py"))
    return _digest("\n".join(f"{path.name} {_parsed(path, 0, 0)[0]}" for path in files))


@cache
def _parsed(path: Path, changed: int, size: int) -> tuple[str, frozenset[tuple[int, str]]]:
    """The fingerprint of a file, and what it imports: (dots in front, name)."""
    tree, imports = ast.parse(path.read_bytes()), set[tuple[int, str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {(0, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = f"{node.module}." if node.module else ""
            imports |= {(node.level, start + alias.name) for alias in node.names}
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return _digest(ast.unparse(tree)), frozenset(imports)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
