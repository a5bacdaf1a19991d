"""What you wrote yourself and name as `package.module:attribute`: one file in the current folder is enough.

A folder with data may hold a `random.py` or `torch.py`, by accident or by intent; Python would prefer it to the library
of that name. So the command line takes the current folder off the path (`leave_folder_out`), and `import_here` looks
there for the one module that a user names. What that module imports may lie beside it: from then on the folder is the
last place on the path. When what you wrote fails, `place_of` says where: your file and line, and not the library's.
"""

import importlib
import inspect
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from posterity.settings.hyperparameters import nearest

PACKAGE = Path(__file__).resolve().parents[1]
SAFE = "PYTHONSAFEPATH"  # environment: Python adds no current folder by itself
AUTHORS = tuple(str(PACKAGE / folder) for folder in ("methods", "models"))  # what authors add to the package itself
LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib",
                                                                             "platlib")})  # fmt: skip


def leave_folder_out() -> None:
    """Take the current folder from the path of this process and of those that it starts.

    Python puts it first for `python -m posterity`. In a checkout, which holds this package, it becomes the last.
    """
    here, home = os.getcwd(), str(PACKAGE.parent)
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
        del sys.path[0]
        if here == home and here not in sys.path:
            sys.path.append(here)
    if here != home:
        os.environ[SAFE] = "1"


def import_here(name: str) -> None:
    """Import the outermost package of `name` from the current folder, if it is there and nothing has its name.

    Modules of Python itself, and those imported already, stay what they are.
    """
    here, top = os.getcwd(), name.partition(".")[0]
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    if top in sys.modules or top in sys.stdlib_module_names:
        return
    spec = PathFinder.find_spec(top, [here])
    if spec is None or spec.loader is None or spec.origin is None:  # not there, or a folder that is no package
        return
    module = module_from_spec(spec)
    sys.modules[top] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(top, None)
        raise


def import_outside(name: str) -> ModuleType | None:
    """The module called `name`, or None if there is none; what a module that is there fails to import is an error."""
    if not name or name.startswith("."):
        return None
    try:
        import_here(name)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the file was found; something it imports was not
        return None


def find_outside(path: str, what: str) -> tuple[Any, ModuleType]:
    """What `package.module:attribute` names (None if the module has no such), and its module."""
    source, _, attribute = path.partition(":")
    module = import_outside(source)
    if module is None:
        raise ValueError(
            f"there is no module {source!r} to take the {what} {path!r} from; is it on the path? "
            "(the current folder is searched; set PYTHONPATH for others)"
        )
    return getattr(module, attribute, None), module


def name_method(given: Any) -> Any:
    """`package.module:Class` for a class that was given instead of its name; a name as it is."""
    if isinstance(given, str):
        return given
    if not isinstance(given, type):
        form = "by name ('fedavg+ft'), as 'package.module:Class', or by its class"
        raise ValueError(f"the method is a {type(given).__name__}; expected one {form}; its values go into set={{…}}")
    source, name = given.__module__, given.__qualname__
    if source == "__main__" or getattr(sys.modules.get(source), name, None) is not given:
        raise ValueError(
            f"the class {name} cannot be found again by a run's folder: it lives in the script or notebook that runs, "
            "or inside of something; put it into a file of its own, say mine.py, and give "
            f"'mine:{given.__name__}' or the class from there"
        )
    return f"{source}:{name}"


def find_function(path: str, what: str) -> Any:
    """The function (or class) that `package.module:attribute` names, or an error that says what is missing."""
    found, module = find_outside(path, what)
    if not callable(found):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        kind = "nothing" if found is None else f"of type {type(found).__name__}"
        name = path.partition(":")[2]
        raise ValueError(f"{path!r} is {kind}, not a function that makes a {what}: {nearest(name, functions)}")
    return found


@dataclass(frozen=True)
class Place:
    """A line of a file that somebody else wrote."""

    file: str
    line: int
    function: str = ""

    @property
    def text(self) -> str:
        """The line itself, without its indentation."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        path = Path(self.file)
        near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{near}, line {self.line}" + (f", in {self.function}" if self.function else "")


def is_yours(file: str) -> bool:
    """Whether a file is neither the library's nor Python's; methods and networks of the package have authors, too."""
    path = str(Path(file).resolve())
    if file.startswith("<") or path.startswith(str(PACKAGE)):
        return path.startswith(AUTHORS)
    return not path.startswith(LIBRARIES)


def place_of(error: BaseException) -> Place | None:
    """The innermost line of yours that an exception passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_yours(f.filename)]
    return Place(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else None


def place_of_class(cls: type) -> Place | None:
    """Where a class of yours begins."""
    try:
        return Place(inspect.getfile(cls), inspect.getsourcelines(cls)[1], cls.__name__)
    except (OSError, TypeError):  # typed into a prompt
        return None


def place_of_function(function: Callable[..., Any]) -> Place | None:
    """Where a function of yours begins."""
    plain = inspect.unwrap(getattr(function, "func", function))
    code = getattr(plain, "__code__", None)
    return Place(code.co_filename, code.co_firstlineno, code.co_name) if code else None


def describe_error(error: BaseException) -> str:
    """An exception in a sentence: where in your code it happened (if it did), the line, and what Python says."""
    first = str(error).strip().split("\n")[0][:300]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    place = place_of(error)
    return what if place is None else f"{place}: `{place.text}` raised {what}"
