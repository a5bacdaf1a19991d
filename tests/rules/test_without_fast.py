"""`posterity/fast` exists only to be faster: without it every other engine computes what it did, to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden.checkpoints import recorded

from posterity.settings.names import engine_names

TESTS = Path(__file__).parents[1]
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] == ["posterity", "fast"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
sys.path.insert(0, sys.argv[1])
"""
GOLDEN = ("fedavg stacked float32 mlp", "fedper stacked float32 cnn", "pfedvmp stacked float64 mlp")
PART = ("engine/test_client.py", "engine/test_participation.py", "oracles/test_gaussians.py")


def without_fast(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", HIDE + code, str(TESTS), *words], capture_output=True,
                          text=True, timeout=600, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
                          cwd=TESTS.parent)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_engines_are_found_by_their_place():
    assert set(engine_names()) == {"stacked", "oracle", "loop", "graph", "compiled"}


def test_runs_of_all_engines_that_are_left():
    found = json.loads(without_fast("""
import json, posterity
from posterity.settings.names import engine_names
assert engine_names() == ("stacked", "oracle")
small = {"method": "fedper", "dataset": "digits", "clients": 4, "rounds": 2, "subset": "10%"}
done = [posterity.run(engine=name, **small) for name in ("auto", "stacked", "oracle")]
try:
    posterity.run(engine="graph", **small)
    why = ""
except ValueError as error:
    why = str(error)
print(json.dumps([[run.setup.engine.name for run in done], [run.metric("nll", show="last") for run in done], why]))
"""))  # fmt: skip
    names, values, why = found
    assert names == ["stacked", "stacked", "oracle"]
    assert values[0] == values[1] == pytest.approx(values[2], rel=1e-5)
    assert "possible: auto, oracle, package.module:engine, stacked" in why


@pytest.mark.skipif(not recorded(), reason="no golden hashes were recorded on this machine")
def test_golden_runs_end_with_the_same_bits():
    known = recorded() or {}
    hashes = json.loads(without_fast("""
import json, torch
from golden.checkpoints import hash_of, impatient
torch.set_num_threads(1)
with impatient():
    print(json.dumps({name: hash_of(name) for name in sys.argv[2:]}))
""", *GOLDEN))  # fmt: skip
    assert hashes == {name: known[name] for name in GOLDEN}


def test_what_is_replayed_has_the_bits_of_what_is_called():
    """Every golden hash of `graph` is that of `stacked`, as far as both were recorded."""
    known = recorded() or {}
    pairs = [(name, name.replace(" graph ", " stacked ")) for name in known if " graph " in name]
    apart = [name for name, other in pairs if other in known and known[name] != known[other]]
    assert not apart


def test_a_selection_of_tests():
    without_fast("""
import os, pytest
os.chdir("tests")
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not everything", *sys.argv[2:]]))
""", *PART)  # fmt: skip
