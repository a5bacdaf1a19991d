"""Calling a network, or its tail, with weights handed in by name.

`functional_call` lends tensors to the module and takes them back; this file adds what else a call needs (training
flag, mask, key, hooks) and gives all of that back too, whatever happens inside.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from posterity.nn._names import unknown
from posterity.nn.layers import KeyedDropout, Norm

Params = dict[str, Tensor]
Around = Mapping[str, Callable[[Tensor, Tensor], Tensor]]

_LOCK = threading.RLock()  # a module is lent to one call at a time; nested calls of the same thread pass
_CALLS: list[object] = []  # those under way, the innermost last; only the lock's holder looks at it
_LENT: dict[type[nn.Module], tuple[str, ...]] = {Norm: ("training", "mask"), KeyedDropout: ("training", "key", "uses")}
_CLEAN: dict[str, Any] = {"training": False, "mask": None, "key": None, "uses": 0}


def leaves_of(module: nn.Module) -> Params:
    """Parameters and persistent floating buffers by name, in the module's order; tied tensors once."""
    found: Params = dict(module.named_parameters())
    for prefix, layer in module.named_modules():
        for name, buffer in layer._buffers.items():
            if buffer is not None and buffer.is_floating_point() and name not in layer._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


@dataclass(frozen=True, eq=False)
class BoundModule:
    """A module and how its tensors are called in the whole network."""

    module: nn.Module
    wires: dict[str, str]  # name in the module -> name of the leaf
    constants: Params  # buffers that are no leaves: integer tables and the like
    masks: tuple[str, ...]
    keys: tuple[str, ...]
    layers: dict[str, nn.Module]
    attends: bool = False  # its attention is computed by plain products, which can be stacked

    @staticmethod
    def of(module: nn.Module, full: nn.Module) -> BoundModule:
        """`module` is `full` or a part of it."""
        called = {id(t): n for n, t in leaves_of(full).items()}
        wires = {n: called[id(t)] for n, t in leaves_of(module).items()}
        constants = {n: b for n, b in module.named_buffers() if n not in wires}
        named = dict(module.named_modules())
        masks = tuple(_inside(n, "mask") for n, m in named.items() if isinstance(m, Norm))
        keys = tuple(_inside(n, "key") for n, m in named.items() if isinstance(m, KeyedDropout))
        attends = any(isinstance(m, nn.MultiheadAttention) for m in named.values())
        return BoundModule(module, wires, constants, masks, keys, named, attends)

    def __call__(
        self,
        params: Params,
        x: Tensor,
        mask: Tensor | None = None,
        train: bool = False,
        key: Tensor | None = None,
        around: Around | None = None,
        want: tuple[str, ...] = (),
    ) -> tuple[Tensor, Params, Params]:
        """Output, the tensors after the call by leaf name, inputs seen by the layers in `want`."""
        lent = self._lent(params, x, mask, key)
        seen: Params = {}
        plain = _plain_attention() if self.attends else nullcontext()
        with _LOCK, _turn(self.layers, train) as token, ExitStack() as hooks, plain:
            for name in want:
                handle = self._layer(name).register_forward_pre_hook(_note(token, seen, name))
                hooks.callback(handle.remove)
            for name, change in (around or {}).items():
                handle = self._layer(name).register_forward_hook(_change(token, change))
                hooks.callback(handle.remove)
            output = functional_call(self.module, lent, (x,))
        for name in want:
            if name not in seen:
                raise ValueError(f"Layer {name!r} was not called by the network's forward, so it saw no input.")
        return output, {leaf: lent[local] for local, leaf in self.wires.items()}, seen

    def _lent(self, params: Params, x: Tensor, mask: Tensor | None, key: Tensor | None) -> Params:
        missing = [leaf for leaf in self.wires.values() if leaf not in params]
        if missing:  # functional_call would silently use the module's own weights
            raise KeyError(f"The parameters lack {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}.")
        lent = {local: params[leaf] for local, leaf in self.wires.items()}
        lent |= {name: buffer.to(x.device) for name, buffer in self.constants.items()}
        if mask is not None:
            lent |= dict.fromkeys(self.masks, mask)
        if key is not None:
            lent |= dict.fromkeys(self.keys, key)
        return lent

    def _layer(self, name: str) -> nn.Module:
        if not name or name not in self.layers:
            raise ValueError(unknown("layer", name, self.layers))
        return self.layers[name]


@contextmanager
def _turn(layers: Mapping[str, nn.Module], train: bool) -> Iterator[object]:
    """The module for one call: its flag set, nothing of a call around this one in sight, all given back at the end."""
    before = [(m, {n: getattr(m, n) for n in _LENT.get(type(m), ("training",))}) for m in layers.values()]
    token = object()
    try:
        _CALLS.append(token)
        for m, values in before:
            for name in values:
                setattr(m, name, _CLEAN[name])
            m.training = train
        yield token
    finally:
        _CALLS.pop()
        for m, values in before:
            for name, value in values.items():
                setattr(m, name, value)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention by products of matrices inside: PyTorch's fused operators have no rule for many clients at once."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _note(token: object, seen: Params, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if _CALLS[-1] is token:  # a call inside this one has its own hooks
            seen[name] = inputs[0]

    return hook


def _change(
    token: object, change: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
    def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        return change(inputs[0], output) if _CALLS[-1] is token else output

    return hook


def _inside(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name


def global_generators() -> dict[str, Any]:
    """The states of the generators that anybody may draw from, by the name of their library."""
    state: Any = np.random.get_state()
    with torch._C._DisableFuncTorch():  # inside of `grad`, PyTorch 2.6 could not read the state
        torch_state = torch.get_rng_state().tolist()
    return {
        "torch": torch_state,
        "numpy.random": (state[1].tolist(), state[2]),
        "random": random.getstate(),
    }


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators (PyTorch's of the CPU) at `seed` inside, and as they were before afterwards."""
    others = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed the accelerators
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(others[0])
            random.setstate(others[1])
