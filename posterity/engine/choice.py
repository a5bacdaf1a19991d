"""How a network is run: which engine, and which way to convolve. `auto` measures where the answer is not clear.

Networks without convolutions are fastest stacked and recorded. Convolutions whose filters differ per client are another
matter: on a CPU one client after another may win, on a GPU any of three ways. A few steps of each are timed at the
start of a run; the usual way is left only for one that is clearly faster, so that noise does not decide. The choice is
written into `run.json`: --engine and --convolution repeat it, and with it the last bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from posterity.core.method import Params
from posterity.core.tree import tree_leaves, tree_map
from posterity.engine.round import ENGINES

TOGETHER = 8  # clients of a trial
ROWS = 10  # samples of each
TRIES = 3  # of which the fastest counts
LOOSE = 0.02  # TF32 may differ from float32 by this share of the largest gradient
CLEARLY = 1.25  # times faster than the usual way


def choose_engine(name: str, model: Any, x: Tensor, params: Params) -> tuple[ModuleType, str]:
    """The engine of that name and why; `auto` records and replays unless an operator cannot be stacked."""
    reasons = tuple(getattr(model, "unstackable", ())) or probe(model, x, params)
    if name == "auto":
        name = "loop" if reasons else "graph"
    if name not in ENGINES:
        raise ValueError(f"engine {name!r} is unknown; possible: auto, {', '.join(ENGINES)}")
    if name != "loop" and reasons:
        raise ValueError(f"the model cannot be stacked ({'; '.join(reasons)}): use --engine loop or auto")
    return ENGINES[name], "; ".join(reasons)


def choose_way(engine: str, way: str, model: Any, x: Tensor, params: Params) -> tuple[str, Any, str]:
    """Engine, model and a remark, where `auto` in either is decided by trials of a network with convolutions."""
    if way != "auto":
        return engine, _checked(model.rewired(way), model, x, params), ""
    possible = model.ways(x.device.type) if hasattr(model, "ways") and not model.unstackable else ()
    if not possible:
        return engine, model, ""
    wired = {each: _checked(model.rewired(each), model, x, params) for each in possible}
    times = {each: _trial(wired[each], x, params) for each in possible}
    if engine in ("auto", "loop") and not x.is_cuda:
        times["loop"] = TOGETHER * _trial(model, x, params, 1)
    shown = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in times.items())
    fastest = min(times, key=lambda name: times[name])
    best = fastest if times[fastest] * CLEARLY < times[possible[-1]] else possible[-1]  # the last is the usual one
    best = "loop" if engine == "loop" else best
    remark = f"{TOGETHER} clients x {ROWS} samples: {shown}"
    return ("loop", model, remark) if best == "loop" else (engine, wired[best], remark)


def _checked(other: Any, model: Any, x: Tensor, params: Params) -> Any:
    """`other`, if its gradients are those of `model`: a kernel that a compiler got wrong must not go unseen."""
    if other is model:
        return other
    for mine, theirs in zip(*(tree_leaves(_step(m, x, params, 2)()) for m in (other, model)), strict=True):
        if not torch.allclose(mine, theirs, rtol=LOOSE, atol=LOOSE * float(theirs.abs().max())):
            raise ValueError(f"convolutions computed by {other.way!r} are wrong on this machine (they differ from "
                             f"PyTorch's own by more than {LOOSE:.0%}): use --convolution native")  # fmt: skip
    return other


def _trial(model: Any, x: Tensor, params: Params, clients: int = TOGETHER) -> float:
    """Seconds of a gradient for so many clients."""
    return _fastest(_step(model, x, params, clients), x.device)


def _step(model: Any, x: Tensor, params: Params, clients: int) -> Callable[[], Any]:
    """Gradients of so many clients, all of which have the same parameters and samples."""
    rows = x[torch.arange(ROWS, device=x.device) % len(x)]
    many = tree_map(lambda leaf: leaf.expand(clients, *leaf.shape).clone(), params)
    inputs = rows.expand(clients, *rows.shape).clone()
    mask, key = rows.new_ones(ROWS), torch.zeros(2, dtype=torch.int64, device=x.device)

    def slope(params: Params, x: Tensor) -> Any:
        return grad(lambda p: (model(p, x, mask=mask, train=True, key=key)[0] ** 2).sum())(params)

    return (lambda: vmap(slope)(many, inputs)) if clients > 1 else (lambda: slope(params, rows))


def _fastest(step: Callable[[], Any], device: torch.device) -> float:
    best = float("inf")
    for attempt in range(TRIES + 1):  # the first warms up
        begun = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun) if attempt else best
    return best


def probe(model: Any, x: Tensor, params: Params) -> tuple[str, ...]:
    """Why two clients cannot take a step of this network at once; () if they can.

    A network that draws its own random numbers is refused altogether: no engine could repeat them.
    """
    pair = tree_map(lambda leaf: torch.stack((leaf, leaf)), params)
    mask, key = x.new_ones(len(x)), torch.zeros(2, dtype=torch.int64, device=x.device)

    def slope(params: Params) -> Any:
        return grad(lambda p: model(p, x, mask=mask, train=True, key=key)[0].sum())(params)

    try:
        vmap(slope)(pair)
    except RuntimeError as error:
        if "random" in str(error):
            raise ValueError(
                "the network draws random numbers by itself (F.dropout, torch.rand, …), which no seed could repeat: "
                "use nn.Dropout layers, which are replaced by keyed ones"
            ) from None
        return (f"an operator in its forward: {str(error).splitlines()[0][:200]}",)
    return ()


def footprint(model: Any, x: Tensor, params: Params) -> int:
    """Bytes that one sample leaves behind for the backward pass: a few for an MLP, a thousand an input for a ResNet."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    leaves = {n: p.detach().requires_grad_(p.is_floating_point()) for n, p in params.items()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(leaves, x, mask=x.new_ones(len(x)), train=True, key=torch.zeros(2, dtype=torch.int64, device=x.device))
    for p in leaves.values():
        kept.pop(p.data_ptr(), None)
    return sum(kept.values()) // len(x)


__all__ = ["choose_engine", "choose_way", "footprint", "probe"]
