"""What the package never does: backward, loaders, devices by name, global seeds, pickle; and nobody's own paths."""

from __future__ import annotations

import ast

import pytest

from .source import imported, modules, texts

FILES = modules()
MODULES = ("pickle", "cloudpickle", "dill", "joblib", "shelve", "torch.utils.data")
CALLS = ("torch.load", "torch.save", "torch.manual_seed", "torch.cuda.manual_seed", "torch.set_default_dtype")
METHODS = ("backward", "cuda")
WORDS = ("/wo" + "rk/", ".." + "/shared", ".lib" + "rary")
EXEMPT = (".ci/run",)


def offences(tree: ast.AST, file: str) -> list[str]:
    """Forbidden things in the code; comments and docstrings may speak about them."""
    names = imported(tree, file)
    found = [n for n in sorted(names) if any(n == m or n.startswith(m + ".") for m in MODULES)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "DataLoader":
            found.append("DataLoader")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in CALLS:
            found.append(ast.unparse(node))
        if isinstance(node, ast.Call):
            found += _calls(node)
    return found


def _calls(node: ast.Call) -> list[str]:
    found = [f"{k.arg}=True" for k in node.keywords if k.arg == "allow_pickle" and ast.unparse(k.value) != "False"]
    if isinstance(node.func, ast.Attribute):
        words = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if node.func.attr in METHODS:
            found.append(f".{node.func.attr}(")
        if node.func.attr == "to" and any(w.startswith("cuda") for w in words):
            found.append('.to("cuda")')
    return found


@pytest.mark.parametrize("file", FILES)
def test_nothing_forbidden(file):
    assert offences(FILES[file], file) == []


@pytest.mark.parametrize(
    "text",
    [
        "loss.backward()",
        "import pickle",
        "from torch.utils.data import DataLoader",
        "torch.load(path)",
        "x = torch.manual_seed",
        "x.to('cuda:0')",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_the_rule_bites(text):
    assert offences(ast.parse(text), "posterity/a.py")


@pytest.mark.parametrize("text", ["np.load(f, allow_pickle=False)", "x.to('cpu')", "x = 1  # torch.load is not used"])
def test_the_rule_lets_pass(text):
    assert offences(ast.parse(text), "posterity/a.py") == []


def test_no_file_names_the_workplace():
    found = [
        f"{name}:{number}: {word}"
        for name, text in texts().items()
        if name not in EXEMPT
        for number, line in enumerate(text.splitlines(), 1)
        for word in WORDS
        if word in line
    ]
    assert found == []
