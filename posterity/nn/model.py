"""A network as a pure function of its parameters, split where its head begins.

`Model` never changes: parameters go in as a dict of tensors, new running statistics come out as another. It works
unchanged under `vmap`, `grad` and any nesting of them. For a call, `BoundModule` lends tensors to the module
(PyTorch's `functional_call`) with what else is needed (training flag, mask, key, hooks). What stands in for a layer's
output (`around`) may not call the same network.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from posterity.core.network import Around, Change, Network, Params, Task
from posterity.nn.convolution import Way, possible_ways, rewire, way_of
from posterity.nn.layers import NORMS, KeyedDropout, Norm, twin
from posterity.settings.hyperparameters import unknown
from posterity.settings.plugins import describe_error

_LOCK = threading.RLock()  # a module is lent to one call at a time


def leaves_of(module: nn.Module) -> Params:
    """Parameters and persistent floating buffers by name, in the module's order; tied tensors once."""
    found: Params = dict(module.named_parameters())
    for prefix, layer in module.named_modules():
        for name, buffer in layer._buffers.items():
            if buffer is not None and buffer.is_floating_point() and name not in layer._non_persistent_buffers_set:
                found[_join(prefix, name)] = buffer
    return found


class BoundModule:
    """`module`, which is `full` or a part of it, and how its tensors are called in the whole network."""

    def __init__(self, module: nn.Module, full: nn.Module) -> None:
        called = {id(t): n for n, t in leaves_of(full).items()}
        self.module, self.layers = module, dict(module.named_modules())
        self.wires = {n: called[id(t)] for n, t in leaves_of(module).items()}  # name in the module -> name of the leaf
        # buffers that are no leaves: integer tables and the like
        self.constants = {n: b for n, b in module.named_buffers() if n not in self.wires}
        self.masks = [_join(n, "mask") for n, m in self.layers.items() if isinstance(m, Norm)]
        self.keys = [_join(n, "key") for n, m in self.layers.items() if isinstance(m, KeyedDropout)]
        # attention is computed by plain products, which can be stacked
        self.attends = any(isinstance(m, nn.MultiheadAttention) for m in self.layers.values())

    def __call__(
        self,
        params: Params,
        x: Tensor,
        mask: Tensor | None,
        train: bool,
        key: Tensor | None,
        around: Around,
        want: tuple[str, ...],
    ) -> tuple[Tensor, Params, Params]:
        """Output, the tensors after the call by leaf name, inputs seen by the layers in `want`."""
        lent = self._lent(params, x, mask, key)
        seen: Params = {}
        plain = _plain_attention() if self.attends else nullcontext()
        with _LOCK, ExitStack() as hooks, plain:
            for layer in self.layers.values():
                layer.training = train
                if isinstance(layer, KeyedDropout):
                    layer.uses = 0
            for name in want:
                hooks.callback(self._layer(name).register_forward_pre_hook(partial(_note, seen, name)).remove)
            for name, change in around.items():
                hooks.callback(self._layer(name).register_forward_hook(partial(_change, change)).remove)
            output = functional_call(self.module, lent, (x,))
        for name in want:
            if name not in seen:
                raise ValueError(f"Layer {name!r} was not called by the network's forward, so it saw no input.")
        return output, {leaf: lent[local] for local, leaf in self.wires.items()}, seen

    def _lent(self, params: Params, x: Tensor, mask: Tensor | None, key: Tensor | None) -> Params:
        missing = [leaf for leaf in self.wires.values() if leaf not in params]
        if missing:  # functional_call would silently use the module's own weights
            raise KeyError(f"The parameters lack {', '.join(missing)}.")
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
def _plain_attention() -> Iterator[None]:
    """Attention by products of matrices inside: PyTorch's fused operators have no rule for many clients at once."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _note(seen: Params, name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    seen[name] = inputs[0]


def _change(change: Change, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return change(inputs[0], output)


def global_generators() -> dict[str, Any]:
    """The states of the generators that anybody may draw from, by the name of their library."""
    state: Any = np.random.get_state()
    with torch._C._DisableFuncTorch():  # inside of `grad`, PyTorch 2.6 could not read the state
        torch_state = torch.get_rng_state().tolist()
    return {"torch": torch_state, "numpy.random": (state[1].tolist(), state[2]), "random": random.getstate()}


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


@dataclass(frozen=True, eq=False)
class Model(Network):
    """A network without its weights. Two models are equal only if they are the same object."""

    module: nn.Module = field(repr=False)  # twinned; lent out during a call, which leaves its training flags
    head: str | tuple[str, ...]  # where the head begins; in a Sequential, all that follows belongs to it
    classes: int
    task: Task = "classification"
    name: str = "model"
    unstackable: tuple[str, ...] = ()  # reasons why many clients cannot run at once
    shape: tuple[int, ...] | None = None  # of one input, where known
    make: Callable[[], nn.Module] | None = field(default=None, repr=False)  # builds the network anew for `init`
    fresh: bool = True  # False: `init` returns the weights the module came with
    compute: torch.dtype | None = None  # what layers compute in, if not in the parameters' own type
    integers: bool | None = None  # whether inputs are integers, to look something up with; None: as they come
    notes: tuple[str, ...] = ()  # what a reader of its results must know

    def __post_init__(self) -> None:
        if self.task not in ("classification", "regression"):
            raise ValueError(unknown("task", str(self.task), ("classification", "regression")))
        named = dict(self.module.named_modules())
        if not self.heads:
            raise ValueError(f"A model needs a head. Possible: {', '.join(n for n in named if n)}.")
        for name in self.heads:
            if not name or name not in named:
                raise ValueError(unknown("sub-module for the head called", name, named))

    # --- names

    @cached_property
    def heads(self) -> tuple[str, ...]:
        return (self.head,) if isinstance(self.head, str) else tuple(self.head)

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        return tuple(leaves_of(self.module))

    @cached_property
    def buffers(self) -> frozenset[str]:
        return frozenset(self.leaves) - {n for n, _ in self.module.named_parameters()}

    @cached_property
    def trainable(self) -> frozenset[str]:
        return frozenset(n for n, p in self.module.named_parameters() if p.requires_grad)

    @cached_property
    def norms(self) -> frozenset[str]:
        """Leaves of normalisation layers (batch, group, layer, instance norm), running statistics included."""
        inside = [n for n, m in self.module.named_modules() if isinstance(m, NORMS)]
        return frozenset(n for n in self.leaves if n.rpartition(".")[0] in inside)

    @cached_property
    def head_names(self) -> frozenset[str]:
        tops = [*self.heads, *(n for n, _ in self._tail)]
        return frozenset(n for n in self.leaves if any(n == top or n.startswith(top + ".") for top in tops))

    @cached_property
    def base_names(self) -> frozenset[str]:
        return frozenset(self.leaves) - self.head_names

    @cached_property
    def size(self) -> int:
        """Number of parameters, buffers not counted."""
        return sum(p.numel() for p in self.module.parameters())

    @cached_property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of the head's input for one sample."""
        if self.shape is not None:
            return self._probe[0]
        first: nn.Module = self.module.get_submodule(self.heads[0])
        while isinstance(first, nn.Sequential) and len(first):
            first = first[0]
        if isinstance(first, nn.Linear):
            return (first.in_features,)
        raise ValueError(f"The head {self.heads[0]!r} does not tell its input's size; give the model a shape.")

    @cached_property
    def feature_dim(self) -> int:
        return int(torch.Size(self.feature_shape).numel())

    # --- weights

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        """Initial leaves: a function of the seed alone, drawn as PyTorch draws them."""
        if not self.fresh:
            source = self.module
        else:
            with seeded(seed):
                source = _reset(self.module) if self.make is None else twin(self.make())
        found = leaves_of(source)
        return {n: found[n].detach().clone().to(dtype) for n in self.leaves}

    @cached_property
    def conv_backend(self) -> str:
        return way_of(self.module)

    def conv_backends(self, device: str) -> tuple[Way, ...]:
        return possible_ways(device) if self.conv_backend else ()

    def with_conv_backend(self, backend: Way) -> Model:
        module = copy.deepcopy(self.module)
        return replace(self, module=module) if rewire(module, backend) else self

    def with_compute_dtype(self, compute: torch.dtype) -> Model:
        """The same network that computes in a smaller type; parameters, outputs and features stay as they are."""
        return replace(self, compute=compute)

    # --- calls

    def __call__(self, params: Params, x: Tensor, *more: Any, **how: Any) -> Any:
        output, buffers, seen = self._run(self._full, params, x, *more, **how)
        return (output, buffers, seen) if seen else (output, buffers)

    def classify(self, params: Params, z: Tensor, *more: Any, **how: Any) -> Tensor:
        """The head alone: logits (B, C), or values (B,), of features z (B, d)."""
        if self._tail_part is None:
            several = f"The head is made of several sub-modules ({', '.join(self.heads)})"
            raise ValueError(f"{several}, in no order that is known. Put them into one nn.Sequential as the head.")
        if self.shape is not None:
            z = z.reshape(z.shape[0], *self.feature_shape)
        return self._run(self._tail_part, params, z, *more, **how)[0]

    def _run(
        self, part: BoundModule, params: Params, x: Tensor, mask: Tensor | None = None, train: bool = False,
        key: Tensor | None = None, around: Around | None = None, want: tuple[str, ...] = (),
    ) -> tuple[Tensor, Params, Params]:  # fmt: skip
        """`part`, in the smaller type if there is one; statistics of batch norm are never rounded."""
        if part is self._full:  # what reaches the head is computed, and never an index
            x = _as_input(x, self.integers, params)
        kind, small, given, changes = x.dtype, self.compute, params, around or {}
        if small is not None:
            kind = x.dtype if x.is_floating_point() else _kind_of(params)
            norms = [(n, m) for n, m in self.module.named_modules() if isinstance(m, Norm)]
            full = {_join(n, leaf) for n, m in norms for leaf in leaves_of(m)}
            given = {n: p if n in full or not p.is_floating_point() else p.to(small) for n, p in params.items()}
            changes = {name: _between(change, kind) for name, change in changes.items()}
            x = x.to(small) if x.is_floating_point() else x
        output, after, seen = part(given, x, mask, train, key, changes, want)
        if small is not None:
            output, seen = output.to(kind), {name: s.to(kind) for name, s in seen.items()}
        buffers = {n: after[n] for n in after if n in self.buffers} if train else {}
        return self._finish(output), buffers, seen

    def _finish(self, output: Tensor) -> Tensor:
        if self.task == "regression":
            return output.squeeze(-1) if output.dim() > 1 and output.shape[-1] == 1 else output
        if output.dim() == 1:
            output = output[:, None]
        if output.shape[-1] == 1 and self.classes == 2:  # one sigmoid unit is two logits, 0 and o
            return torch.cat([torch.zeros_like(output), output], -1)
        return output

    # --- structure

    @cached_property
    def _full(self) -> BoundModule:
        return BoundModule(self.module, self.module)

    @cached_property
    def _tail(self) -> tuple[tuple[str, nn.Module], ...]:
        """Names and layers from the head to the output, as far as they are known to follow each other."""
        path, found = self.heads[0], list[tuple[str, nn.Module]]()
        while path:
            parent, _, name = path.rpartition(".")
            home = self.module.get_submodule(parent)
            if type(home).forward is not nn.Sequential.forward:  # only the network's own forward knows what follows
                return tuple(found) or (((path, self.module.get_submodule(path)),) if len(self.heads) == 1 else ())
            children = [(n, m) for n, m in home._modules.items() if m is not None]
            start = [n for n, _ in children].index(name) + (1 if found else 0)
            found += [(_join(parent, n), m) for n, m in children[start:]]
            path = parent
        return tuple(found)

    @cached_property
    def _tail_part(self) -> BoundModule | None:
        return BoundModule(nn.Sequential(*(m for _, m in self._tail)), self.module) if self._tail else None

    @cached_property
    def _probe(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the head's input and of the output for one sample, found by running two."""
        assert self.shape is not None
        own = {n: t.detach() for n, t in leaves_of(self.module).items()}
        kind = next((t.dtype for t in own.values()), torch.float32)
        try:
            output, _, seen = self(own, torch.zeros(2, *self.shape, dtype=kind), want=(self.heads[0],))
        except Exception as error:
            text = f"The network {self.name!r} does not run on inputs of shape {self.shape}: {describe_error(error)}"
            raise ValueError(text) from error
        return tuple(seen[self.heads[0]].shape[1:]), tuple(output.shape[1:])


def _kind_of(params: Params) -> torch.dtype:
    """The type of the parameters."""
    return next((p.dtype for p in params.values() if p.is_floating_point()), torch.float32)


def _as_input(x: Tensor, integers: bool | None, params: Params) -> Tensor:
    """Inputs in the kind of numbers that the network takes, where that is known."""
    if integers:
        return x.long()
    return x if integers is None or x.is_floating_point() else x.to(_kind_of(params))


def _reset(module: nn.Module) -> nn.Module:
    new = copy.deepcopy(module)
    for layer in new.modules():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            reset()
    for layer in new.modules():  # attention draws what its parts do not, as it does when it is made
        if not hasattr(layer, "reset_parameters") and callable(reset := getattr(layer, "_reset_parameters", None)):
            reset()
    return new


def _between(change: Change, kind: torch.dtype) -> Change:
    """`change` of a layer's input and output, given in `kind`."""
    return lambda x, output: change(x.to(kind), output.to(kind)).to(output.dtype)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
