"""Ordinary mistakes of an author: `check` stops at the first law, with file, line and what was expected."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from posterity.cli.new import write_method
from posterity.laws import LAWS, check
from posterity.methods import find


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A new method with one change in it, as an author would make it."""

    def make(old: str, new: str):
        file, _, path = write_method("fedmine", tmp_path)
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "fedmine", raising=False)
        importlib.invalidate_caches()
        return find(path)()

    yield make
    sys.modules.pop("fedmine", None)


SENT = "        return core.weighted(carry.params, here), ()\n"
COMBINED = "        return core.Leaves(core.averaged(state.params, total))  # (2)\n"
LOSS = "        return value + 0.5 * self.pull * far, buffers\n"
CLASS = "@dataclass(frozen=True)\nclass Fedmine(core.Method):\n"
INIT = "    def init(self, model, params, facts):\n        return State(params)\n\n"
PREDICT = "\n    def predict(self, carry, x, here):\n        return {}\n"
MISTAKES = {
    "typo": (
        SENT,
        SENT.replace("core.weighted", "wieghted"),
        r"`return wieghted\(carry.params, here\), \(\)` raised NameError",
    ),
    "attribute": (SENT, SENT.replace("carry.params", "carry.parms"), "raised AttributeError: .*'parms'"),
    "one thing": (
        SENT,
        SENT.replace(", ()", ""),
        r"in message: message returned a dict; expected two, \(message, record",
    ),
    "three things": (SENT, SENT.replace(", ()", ", (), ()"), "message returned 3 things; expected two"),
    "no monoid": (
        SENT,
        '        return {"params": carry.params}, ()\n',
        r"sends a dict as 'params', which does not add up; "
        r"expected Sum, Mean, .*Mean\(here.n, value\)",
    ),
    "tensor": (SENT, '        return {"bias": here.n}, ()\n', "sends a Tensor as 'bias', which does not add up"),
    "a number": (
        SENT,
        "        from posterity.core import Sum\n\n        return {'one': Sum(1.0)}, ()\n",
        r"returned 1.0 \(float\) at message\['one'\]/value; expected a tensor",
    ),
    "loss without buffers": (
        LOSS,
        LOSS.replace(", buffers", ""),
        r"in loss: the loss returned a Tensor; expected \(value, buf",
    ),
    "loss of a batch": (
        LOSS,
        LOSS.replace("return value", "return far + batch.mask"),
        r"the loss returned a tuple; expected \(value, buffers\): a scalar",
    ),
    "wrong shape": (LOSS, LOSS.replace("far,", "far * (batch.x @ batch.x),"), "raised RuntimeError: .*(shape|size)"),
    "no state": (
        COMBINED,
        "        core.averaged(state.params, total)\n",
        "combine returned a NoneType; expected a Leaves, as init",
    ),
    "another state": (
        COMBINED,
        "        return core.averaged(state.params, total)\n",
        "combine returned a dict; expected a Leaves",
    ),
    "a state that grows": (
        COMBINED,
        "        return core.Leaves({**core.averaged(state.params, total), 'more': total['params'].weight})\n",
        r"combine returned params/more of shape \(\) where the state before had nothing",
    ),
    "a state that shrinks": (
        COMBINED,
        "        return core.Leaves({'first': total['params'].weight})\n",
        r"combine returned params/first of shape \(\) where the state before had params/",
    ),
    "missing function": (
        "    def combine(",
        "    def combin(",
        r"Fedmine does not write combine; a method writes passes, message",
    ),
    "not said": ('    label = "Fedmine"\n', "", "Fedmine does not say label"),
    "plain dataclass": (
        CLASS,
        f"@dataclass(frozen=True)\nclass State:\n    params: dict\n\n\n{CLASS}{INIT}",
        "State as State, a plain dataclass; put @record",
    ),
    "passes": (
        "        return (self.local.descend(self.loss),)",
        "        return self.local.descend(self.loss)",
        "passes returned a Pass; expected a tuple of passes",
    ),
    "start": (
        SENT,
        SENT + "\n    def start(self, here):\n        return here.shared\n",
        "start returned a Leaves; expected a dict",
    ),
    "scored": ('= "received"', '= "recieved"', "scored is 'recieved'; expected received, adapted, trained"),
    "predict": (
        COMBINED,
        COMBINED + PREDICT.format("here.model(carry.params, x)[0].sum(-1)"),
        r"predict returned shape \(\d+,\) for \d+ samples; expected log-probabilities of shape \(\d+, 4\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_sentence_with_its_line(mine, name):
    old, new, text = MISTAKES[name]
    first, *rest = check(mine(old, new))
    assert (first.law, first.held) == ("runs", False)
    sentence = first.detail.splitlines()[0]
    assert re.search(text, sentence), sentence
    assert re.search(r"fedmine\.py, line \d+, in \w+: ", sentence), sentence
    assert {v.follows for v in rest} == {"runs"}
    assert all(v.detail == "not tried: follows from runs" for v in rest)


CAUSES = {
    "branch": (
        LOSS,
        "        if value > 0:\n            value = value * 2\n" + LOSS,
        "stacking",
        "`if value > 0:` asks a tensor whether it is true: data-dependent control flow",
    ),
    "randn": (
        LOSS,
        "        import torch\n\n        value = value + torch.randn(())\n" + LOSS,
        "purity",
        r"`value = value \+ torch.randn\(\(\)\)` draws from the global generator of torch",
    ),
    "numpy": (
        SENT,
        "        import numpy\n\n        noise = numpy.random.rand()\n"
        + SENT.replace("carry.params", "{n: p + noise for n, p in carry.params.items()}"),
        "purity",
        r"`noise = numpy.random.rand\(\)` draws from the global generator of numpy.random",
    ),
    "in place": (
        SENT,
        "        carry.params['head.bias'] += 1\n" + SENT,
        "purity",
        r"`carry.params\['head.bias'\] \+= 1`: message .* wrote to what it was handed",
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named_in_the_first_line_and_once(mine, name):
    old, new, law, text = CAUSES[name]
    verdicts = check(mine(old, new))
    broken = [v for v in verdicts if not v.held and not v.follows]
    assert [v.law for v in broken] == [law]
    assert re.search(rf"fedmine\.py, line \d+, in \w+: {text}", broken[0].detail.splitlines()[0]), broken[0].detail
    assert {v.follows for v in verdicts if v.follows} == {law}


def test_laws_are_tried_from_cause_to_consequence_and_seen_one_by_one(mine):
    seen: list[str] = []
    check(mine(SENT, SENT), only=["sums", "runs", "structure"], watch=lambda verdict: seen.append(verdict.law))
    assert seen == ["runs", "structure", "sums"]
    assert [law.name for law in LAWS][:4] == ["runs", "purity", "seed", "stacking"]
