"""Where Python looks for modules while the command line works: the current folder only for what is named.

A folder with data may hold a `random.py` or `torch.py`, by accident or by intent; Python would prefer it to the library
of that name. So the command line takes the current folder off the path (`leave_folder_out`), and `core/outside.py`
looks there for the one module that a user names, as in `--method my_method:Mine` (`import_here`). What that module
imports may lie beside it: from then on the folder is the last place on the path.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

SAFE = "PYTHONSAFEPATH"  # environment: Python adds no current folder by itself
HOME = str(Path(__file__).resolve().parents[1])  # where this package lies


def leave_folder_out() -> None:
    """Take the current folder from the path of this process and of those that it starts.

    Python puts it first for `python -m posterity`. In a checkout, which holds this package, it becomes the last.
    """
    here = os.getcwd()
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
        del sys.path[0]
        if here == HOME and here not in sys.path:
            sys.path.append(here)
    if here != HOME:
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


__all__ = ["import_here", "leave_folder_out"]
