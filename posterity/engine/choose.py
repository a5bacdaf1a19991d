"""How a network is run: which engine, which backend of its convolutions, with oneDNN or without. `auto` is a rule.

The same machine, versions and configuration give the same choice, and with it the same last bit: nothing is timed.

    network                                       CPU                                GPU
    an operator that cannot be stacked            `loop`                             `loop`
    fewer than 1.8 clients at work at once        `loop`                             `graph`
    no convolutions                               `graph`                            `graph`
    convolutions, small (`SMALL`)                 `graph`, oneDNN off                `graph`, Triton
    convolutions, larger                          `loop`, the channel last           `graph`, Triton

Small networks lose their time between operators, so a stack wins; larger ones lose it in the operators, and images of
one client with the channel last are pooled several times faster. oneDNN lays out every input anew, which takes longer
than a small convolution does; where it is asked for, small convolutions of a stack are products with patches. Triton's
kernels need the package; without it PyTorch's own convolutions are taken. Without `posterity/fast` the engine is
`stacked`, or `oracle` where clients run one by one. `--engine`, `--convolution` and `--onednn` overrule the rule;
`run.json` has what was taken. `benchmarks/choice.py` times all that is possible and says how far it is from the best.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from posterity.core.gaussian import with_tf32
from posterity.core.network import Network
from posterity.core.protocol import Params
from posterity.core.tree import tree_map
from posterity.engine.blocks import footprint, out_of_memory, too_large
from posterity.engine.engines import Engine, find_engine
from posterity.settings.names import engine_names

ONE_BY_ONE = ("loop", "oracle")  # engines that need not stack clients
ALONE = 1.8  # clients at work at once, on average, below which a stack of them does not pay
SMALL = 2**16  # bytes that a sample leaves behind for the backward pass: LeNet-5 35 kB, `cnn` 187 kB and more
STRICT, LOOSE = 0.02, 0.3  # of a gradient's length: with few bits other pixels may win where they are pooled
FAIR = 1.5  # times as far from exact gradients as PyTorch's own with TF32: deep networks are far from them
ROWS = 64  # samples of that comparison, at most
SLIGHT = 0.01  # of all leaves' length: a bias before batch norm has no slope but rounding, which may be any


@dataclass(frozen=True)
class Wish:
    """What was asked for; `auto` leaves it to the rule."""

    engine: str = "auto"
    convolution: str = "auto"
    onednn: str = "auto"


@dataclass(frozen=True)
class EngineChoice:
    engine: Engine
    model: Network
    onednn: bool = True
    remark: str = ""


def choose(
    wish: Wish, model: Network, x: Tensor, params: Params, batch: int = 10, busy: float = math.inf
) -> EngineChoice:
    """The way to run `model` on samples like `x`, in steps of `batch` samples.

    `busy` is how many clients would be at work at once, on average, if they were stacked (`at_work`).
    """
    remark, device = why_unstackable(model, x, params), x.device.type
    if remark and wish.engine not in (*ONE_BY_ONE, "auto") and ":" not in wish.engine:  # yours may be one by one, too
        raise ValueError(f"the model cannot be stacked ({remark}): use --engine loop or auto")
    stacks, backends, backend = not remark, model.conv_backends(device), wish.convolution
    large = bool(backends) and footprint(model, x, params) >= SMALL
    if stacks and device == "cpu" and busy < ALONE:
        remark = f"{busy:.1f} clients at work at once: one by one is faster"
    elif stacks and device == "cpu" and large and backend != "patches":
        remark = "large convolutions on a CPU: one by one is faster"
    engine = wish.engine if wish.engine != "auto" else _fast("loop", "oracle") if remark else _fast("graph", "stacked")
    alone, onednn = engine in ONE_BY_ONE, wish.onednn != "off"
    if wish.onednn == "auto" and device == "cpu" and backends and not large and backend in ("auto", "native"):
        onednn = False  # it lays out every input anew, which takes longer than a small convolution does
    if backend == "auto":
        backend = _usual_backend(backends, alone, large, onednn)
    elif backend == "last" and not alone and ":" not in engine:
        raise ValueError("convolutions with the channel last are for one client at a time: use --engine loop")
    other = model.with_conv_backend(backend) if backend else model
    if stacks and backends and not alone and backend != "native":
        check_gradients(other, model, x, params, batch)
    return EngineChoice(find_engine(engine), other, onednn, remark if wish.engine == "auto" else "")


def _fast(name: str, otherwise: str) -> str:
    """An engine of `posterity/fast`, or the one that computes the same without it."""
    return name if name in engine_names() else otherwise


def _usual_backend(backends: tuple[str, ...], alone: bool, large: bool, onednn: bool) -> str:
    """What computes the convolutions of a network that has some; empty if it has none."""
    if "last" in backends:  # on a CPU
        return ("last" if large else "native") if alone else "patches" if onednn and not large else "native"
    return "triton" if "triton" in backends and not alone else "native" if backends else ""


def at_work(counts: Tensor, batch: int, cohort: float) -> float:
    """Clients at work at once, on average, while the one with most samples is: of a cohort of such clients."""
    steps = -(-counts[counts > 0] // batch)
    return float(steps.double().mean() * cohort / steps.max()) if len(steps) else 0.0


def why_unstackable(model: Network, x: Tensor, params: Params) -> str:
    """Why two clients cannot take a step of this network at once; empty if they can.

    A network that draws its own random numbers is refused altogether: no engine could repeat them.
    """
    if model.unstackable:
        return "; ".join(model.unstackable)
    mask, key = x.new_ones(len(x)), torch.zeros(2, dtype=torch.int64, device=x.device)
    try:
        vmap(grad(lambda p: model(p, x, mask=mask, train=True, key=key)[0].sum()))(_repeated(params, 2))
    except RuntimeError as error:
        if out_of_memory(error):
            raise too_large(x.device, error) from None
        if "random" in str(error):
            raise ValueError(
                "the network draws random numbers by itself (F.dropout, torch.rand, …), which no seed could repeat: "
                "use nn.Dropout layers, which are replaced by keyed ones"
            ) from None
        return f"an operator in its forward: {str(error).splitlines()[0][:200]}"
    return ""


def check_gradients(other: Network, model: Network, x: Tensor, params: Params, batch: int) -> None:
    """Refuse `other` if its gradients are not those of `model`: a kernel that a compiler got wrong must be seen.

    Samples of a run that was loaded without its data are NaN, and so would every gradient be: zeros stand for them.
    """
    some = torch.nan_to_num(x[torch.arange(min(batch, ROWS), device=x.device) % len(x)])
    lowered = torch.backends.cuda.matmul.allow_tf32
    limit = LOOSE if lowered or getattr(model, "compute", None) is not None else STRICT
    found, right = (_slopes(m, params, some) for m in (other, model))
    apart, own = _distances(found, right), dict.fromkeys(right, 0.0)
    if lowered and not all(far <= limit for far in apart.values()):  # is PyTorch's own as far from exact ones?
        with with_tf32(False):
            exact = _slopes(model, params, some)
        apart, own = _distances(found, exact), _distances(right, exact)
    for name, far in apart.items():
        allowed = max(limit, FAIR * own[name])
        if not far <= allowed:
            raise ValueError(
                f"convolutions computed by {other.conv_backend!r} are wrong on this machine (the gradient of {name} "
                f"differs from PyTorch's own by {far:.0%}; {allowed:.0%} may be rounding): use --convolution native"
            )


def _repeated(tree: Any, clients: int) -> Any:
    return tree_map(lambda leaf: leaf.expand(clients, *leaf.shape).clone(), tree)


def _slopes(model: Network, params: Params, x: Tensor) -> Params:
    mask, key = x.new_ones(len(x)), torch.zeros(2, dtype=torch.int64, device=x.device)

    def slope(params: Params, x: Tensor) -> Any:
        return grad(lambda p: (model(p, x, mask=mask, train=True, key=key)[0] ** 2).sum())(params)

    return vmap(slope)(_repeated(params, 2), _repeated(x, 2))


def _distances(found: Params, right: Params) -> dict[str, float]:
    least = SLIGHT * torch.stack([theirs.norm() for theirs in right.values()]).norm()
    return {n: float((found[n] - theirs).norm() / torch.maximum(theirs.norm(), least)) for n, theirs in right.items()}
