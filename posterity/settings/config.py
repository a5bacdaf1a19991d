"""What a run is: one frozen record, equal to a TOML file, a set of flags (`cli/flags.py`) and parameters in Python.

A setting is one field of `Config`: it says its text, its role, what another value of it changes, and how small it may
be. Whoever needs some of the settings filters them by that (`settings_where`); nobody keeps a list of names.
`experiment/setup.py` makes from it what a run works on: federation, network, method, engine. Nothing here imports
PyTorch.
"""

import inspect
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from posterity.settings import hyperparameters as texts
from posterity.settings.hyperparameters import Knob, hyper, knobs, nearest
from posterity.settings.names import engine_names

Role = Literal["data", "training", "draws", "scores", "machine", "output"]
ROLES: dict[str, Role] = {  # what another value of a setting changes, and where help lists it if nothing else is said
    "data": "data",  # which samples and clients there are
    "division": "data",  # whose a row is, and for what
    "cohort": "training",  # who takes part in a round
    "training": "training",  # what all methods of a comparison have in common
    "method": "training",  # what a method may have for itself
    "draws": "draws",  # partition, initial model and batches
    "scores": "scores",  # when scores are computed, and which
    "sample": "scores",  # whose scores a simulation computes
    "precision": "machine",  # how exactly layers compute
    "rounding": "machine",  # the last bits, at most
    "nothing": "output",
}


@dataclass(frozen=True)
class Use:
    """What a setting is for, and what else is true of it."""

    changes: str  # a key of ROLES
    role: Role
    size: bool  # a smaller run has less of it
    least: int | None  # the smallest value
    local: str  # the field of `Training` that it sets


def setting(
    default: Any, doc: str, changes: str, choices: tuple[str, ...] = (), *, role: Role | None = None,
    size: bool = False, least: int | None = None, local: str = "", compare: bool = True,
) -> Any:  # fmt: skip
    """A field of `Config`; `compare=False`: two runs that differ in it alone are the same run."""
    use = Use(changes, role or ROLES[changes], size, least, local)
    return field(default=default, compare=compare, metadata={**hyper(default, doc, "", choices).metadata, "use": use})


MOST = 2**63  # of whole numbers: what a tensor can hold
ENGINES = ("auto", *engine_names(), "package.module:engine")
# The partitions with an example, written out: `data/partition.py`, which declares them, needs PyTorch, and this file is
# read for every `--help`. A test holds the two equal.
PARTITIONS = "dirichlet:0.3, balanced:0.5, capped:0.3, pathological:3:100, major:2:0.2, quantity:1, iid"


@dataclass(frozen=True)
class Config:
    method: str = setting(
        "pfedvmp", "method, with suffixes (fedavg+ft, pfedvmp@paper), or package.module:Class", "method"
    )
    dataset: str = setting(
        "digits", "dataset by name, a mix (a+b), package.module:function, or the path of your own data", "data"
    )
    target: str | None = setting(None, "column of the label in your own table", "data")
    client_column: str | None = setting(None, "column that says whose row it is", "data")
    group: str | None = setting(None, "column whose value (a patient) is never in two parts", "division")
    data_dir: str | None = setting(
        None, "folder with the data sets' files (default: POSTERITY_DATA)", "nothing", role="data"
    )
    clients: int | None = setting(
        None, "number of clients to divide the data among (default: 20, or the data's own)", "data", size=True
    )
    newcomers: str = setting("0", "clients held out entirely: a number or a share (20%)", "division", size=True)
    partition: str | None = setting(None, f"{PARTITIONS}, or package.module:function", "division")
    subset: str | None = setting(
        None, "share of the data to use (25%), drawn before the partition", "division", size=True
    )
    split: str = setting("80/20", "training / held out, per client", "division")
    test_partition: str = setting(
        "same", "whose distribution the held-out part has", "division", ("same", "independent", "common")
    )
    public: str = setting(
        "0", "share of the training data given to the server without labels (an assumption)", "division"
    )
    model: str = setting("mlp", "network by name, or package.module:make", "training")
    rounds: int = setting(100, "rounds of training", "training", size=True, least=1)
    local_epochs: int | None = setting(None, "epochs on a client in a round", "training", size=True, local="epochs")
    local_steps: int | None = setting(
        None, "exactly so many steps in a round, instead of epochs", "training", size=True, local="steps"
    )
    batch_size: int | None = setting(None, "samples in a step", "training", local="batch")
    lr: float | None = setting(None, "step size of the clients", "method", local="lr")
    optimiser: str | None = setting(None, "sgd, adam or rmsprop", "method", local="optimiser")
    augment: str | None = setting(
        None, "what happens to training pictures at random: crop (after padding by 4), flip, or crop,flip", "training"
    )
    participation: str = setting("all", "who takes part in a round: all, 10, 10% or p:0.3", "cohort", size=True)
    min_count: int | None = setting(
        None,
        "samples behind a class's statistics or a score to be sent (default: 1; Flower: 5, @paper: 1)",
        "method",
        least=1,
    )
    seed: int = setting(0, "moves partition, initial model and batches together", "draws", least=0)
    data_seed: int | None = setting(None, "fixes the partition whatever the seed", "division", role="draws", least=0)
    engine: str = setting("auto", "how clients run", "rounding", ENGINES)
    convolution: str = setting(
        "auto", "how convolutions are computed", "rounding", ("auto", "native", "last", "patches", "triton")
    )
    onednn: str = setting("auto", "whether PyTorch convolves by oneDNN on a CPU", "rounding", ("auto", "on", "off"))
    device: str = setting("cpu", "cpu or cuda", "rounding")
    precision: str = setting(
        "ieee", "of layers: exact, tf32 (GPU, faster) or bf16 (fastest)", "precision", ("ieee", "tf32", "bf16")
    )
    dtype: str = setting("float32", "precision of the clients", "precision", ("float32", "float64"))
    evaluate_every: int | None = setting(
        None,
        "rounds between evaluations (default: they cost at most a fifth of the run, 20 at most)",
        "scores",
        least=1,
    )
    evaluate_clients: str | None = setting(
        None, "members to evaluate: all, or a number (default: up to 2,000 drawn by the seed, at the end all)", "sample"
    )
    evaluate_points: str = setting(
        "all", "points to score: all, or the method's own alone (others train all members)", "sample", ("all", "own")
    )
    newcomer_epochs: int = setting(
        5, "epochs after which newcomers are scored, besides 0 and 1", "scores", size=True, least=1
    )
    keep: str = setting(
        "validated", "selection rules whose round is kept for predictions: validated, paper", "nothing", compare=False
    )
    metrics: str | None = setting(
        None, "further metrics of your own: package.module:name, separated by commas", "nothing"
    )
    store: str = setting("memory", "where personal records live", "rounding", ("memory", "disk"))
    memory: int | None = setting(
        None, "bytes that stacked clients may take at once (default: 1 GiB, a third of a GPU)", "rounding", least=1
    )
    set: Mapping[str, Any] = field(default_factory=dict)  # settings of method, model. and data.

    def __post_init__(self) -> None:
        texts.check_fields(self)
        for name, use in USES.items():
            value = getattr(self, name)
            if use.least is not None and value is not None and not use.least <= value < MOST:
                raise ValueError(f"{name} must be at least {use.least} and below 2**63; {value} was given")
        for name, value in {**vars(self), **self.set}.items():  # halves of characters, as in a path that is not UTF-8
            if str(value).encode(errors="replace").decode() != str(value):
                raise ValueError(f"{name} is {value!r}, which is not UTF-8, and no file can hold it: rename it")
        few = self.evaluate_clients
        if few is not None and few != "all" and not (few.isdecimal() and int(few)):
            raise ValueError(f"evaluate_clients must be 'all' or a number of clients; {few!r} was given")
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError("give --local-epochs or --local-steps, not both")

    @property
    def every(self) -> int:
        """Rounds between evaluations, if they cost little (`schedule.py`)."""
        return self.evaluate_every or max(1, self.rounds // 20)

    @property
    def least(self) -> int:
        """Samples that must stand behind what a client sends about a class, or about its scores."""
        return self.min_count or 1

    def training(self) -> dict[str, Any]:
        """The flags that belong to the clients' training, where given."""
        given = {use.local: getattr(self, name) for name, use in USES.items() if use.local}
        return {name: value for name, value in given.items() if value is not None}

    def settings(self, prefix: str = "") -> dict[str, Any]:
        """Settings under `prefix.`, or those of the method, which have none of the reserved prefixes."""
        if prefix:
            return {k.removeprefix(f"{prefix}."): v for k, v in self.set.items() if k.startswith(f"{prefix}.")}
        return {k: v for k, v in self.set.items() if not k.startswith(("model.", "data."))}


USES: dict[str, Use] = {f.name: f.metadata["use"] for f in fields(Config) if "use" in f.metadata}


def settings_where(chosen: Callable[[Use], bool]) -> tuple[str, ...]:
    """The settings whose use is `chosen`, in the order of `Config`.

    >>> settings_where(lambda use: use.role == "draws")
    ('seed', 'data_seed')
    """
    return tuple(name for name, use in USES.items() if chosen(use))


def from_table(table: Mapping[str, Any], base: Config | None = None) -> Config:
    """A configuration from named values (a TOML table, flags), checked one by one; `base` gives the rest."""
    known = _known()
    values = dict(vars(base)) if base else {}
    for name, value in table.items():
        field_name = name.replace("-", "_")
        if field_name == "set":
            if not isinstance(value, Mapping):
                raise ValueError(f"set takes a table of settings ([set] in TOML); {value!r} was given")
            flat = texts.flat_settings(value)
            values["set"] = {**values.get("set", {}), **{key: as_file_has_it(each) for key, each in flat.items()}}
        elif field_name in known:
            values[field_name] = texts.parse(value, known[field_name])
        else:
            raise ValueError(f"there is no setting {name!r}: {nearest(field_name, [*known, 'set'])}")
    return Config(**values)


def check_seeds(seeds: Any) -> list[int]:
    """The seeds that were given from Python, each once, as its own whole numbers: those of numpy are in no file."""
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise ValueError(f"seeds are whole numbers in a list, such as [0, 1, 2]; {seeds!r} was given")
    try:
        found = [texts.convert(as_file_has_it(seed), int) for seed in seeds]
    except texts.MISTAKES:
        raise ValueError(f"seeds takes whole numbers; {seeds!r} was given") from None
    if len(set(found)) < len(found):
        raise ValueError(f"a seed is named twice: {found} were given")
    return found


@cache
def _known() -> dict[str, Knob]:
    """The fields of a configuration by their names; Python takes milliseconds to read their types."""
    return {knob.name: knob for knob in knobs(Config)}


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise ValueError(f"{path} is no file; expected a configuration in TOML")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no configuration file {path}") from None
    except OSError as error:
        raise ValueError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


def as_file_has_it(value: Any) -> Any:
    """A setting from Python as it is read back from a file: no None, and no numbers of numpy or PyTorch."""
    if value is None:
        return "none"
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [as_file_has_it(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def to_toml(config: Config) -> str:
    """The configuration as TOML: reading it back gives an equal record."""
    lines = [f"{name} = {literal(value)}" for name in USES if (value := getattr(config, name)) is not None]
    if config.set:
        lines += ["", "[set]", *(f"{quoted(k)} = {literal(v)}" for k, v in config.set.items())]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A basic string of TOML, which writes control characters as JSON does, and DEL as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def literal(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    if isinstance(value, str):
        return quoted(value)
    if not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is a {type(value).__name__}, which no file of settings can hold: give a text, a "
                         "number, true or false, or a list of these")  # fmt: skip
    return repr(int(value) if isinstance(value, int) else float(value))  # a float of numpy has another `repr`


P = ParamSpec("P")
R = TypeVar("R")


def documented(function: Callable[P, R]) -> Callable[P, R]:
    """A function `(…, **settings)` that shows all of its parameters and refuses others."""
    takes = inspect.signature(function).parameters.values()
    fixed = [p for p in takes if p.kind is not p.VAR_KEYWORD]
    left_out = {p.name for p in fixed}
    if "seeds" in left_out:
        left_out |= {"method", "seed"}  # there are several of them
    shown = [knob for knob in knobs(Config) if knob.name not in left_out]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(k.name, kind, default=k.default, annotation=k.kind) for k in shown]
    more.append(inspect.Parameter("set", kind, default={}, annotation=Mapping[str, Any]))
    names = [p.name for p in (*fixed, *more)]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise TypeError(f"{function.__name__} has no parameter {name!r}: {nearest(name, names)}. Settings of a "
                                f"method, a model or data go into set={{{name!r}: …}}")  # fmt: skip
        return function(*args, **kwargs)

    checked.__signature__ = inspect.signature(function).replace(parameters=[*fixed, *more])  # type: ignore[attr-defined]
    lines = [
        f"    {knob.name}: {knob.doc}" + (f" ({', '.join(knob.choices)})" if knob.choices else "") for knob in shown
    ]
    lines.append("    set: settings of the method, and model.* and data.*, by name: set={'xi': 10, 'model.hidden': 32}")
    checked.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSettings:\n" + "\n".join(lines) + "\n"
    return checked
