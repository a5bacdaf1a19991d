"""Convolutions whose filters differ from client to client, operation by operation, on a GPU.

    python benchmarks/convolution.py [--network cnn] [--batch 10] [--clients 50,18] [--ways native,triton] [--json FILE]
    python benchmarks/convolution.py --sweep [--kinds tf32] [--seconds 50] [--json FILE]

Microseconds of the forward pass, the weight (and bias) gradient and the input gradient of every convolution of a
network (pFedVMP's, if no other is named) with so many images a client, and of one whole training gradient (`step`), in
float32, TF32 and bfloat16. Each operation is captured several times in one CUDA graph, so launches do not count; the
median over replays is shown. A case that fails is shown with its error, and the table goes on. `--sweep` times the
Triton kernels with other tiles.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from posterity import models
from posterity.nn.convolution import by_kernel, by_patches
from posterity.nn.kernels.grid import WindowGrid

IMAGE = (3, 32, 32)
KINDS = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
WAYS = {"native": F.conv2d, "patches": by_patches, "triton": by_kernel}
COPIES, REPLAYS = 10, 7
Case = Callable[[], Any]


@dataclass(frozen=True)
class Layer:
    """A convolution of a network, with the images that it sees."""

    name: str
    first: bool  # nobody asks for the gradient of its input
    grid: WindowGrid
    outputs: int

    @property
    def operations(self) -> tuple[str, ...]:
        return ("forward", "weight") if self.first else ("forward", "weight", "input")


def layers(network: str, batch: int) -> list[Layer]:
    """The convolutions of a network, first to last."""
    module, found = models.build(network, IMAGE, 10).module, list[Layer]()

    def note(layer: nn.Conv2d, given: tuple[Tensor, ...], output: Tensor) -> None:
        shape: Any = (batch, *given[0].shape[1:])
        grid = WindowGrid(shape, layer.kernel_size, layer.stride, layer.padding)  # type: ignore[arg-type]
        found.append(Layer(f"conv{len(found) + 1}", not found, grid, layer.out_channels))

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(note)
    module(torch.zeros(1, *IMAGE))
    return found


def measure(make: Callable[[], Case]) -> float:
    """Median microseconds of one call of what `make` returns; all of it on one stream, as a capture needs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call = make()
        for _ in range(2):
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(COPIES):
            call()
    times = []
    for _ in range(REPLAYS + 2):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(stop) / COPIES)
    return statistics.median(times[2:])


def draw(layer: Layer, clients: int, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias and a gradient of the images, for all clients."""
    grid, outputs = layer.grid, layer.outputs
    sizes = (grid.shape, (outputs, grid.shape[1], *grid.window), (outputs,), (grid.shape[0], outputs, *grid.places))
    x, w, b, g = (torch.randn(clients, *size, device="cuda", dtype=KINDS[kind]) for size in sizes)
    return x, w / 10, b, g


def laid(way: str, layer: Layer, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Images as they lie in memory inside a network that goes this way: the kernels put the channel last."""
    if way != "triton":
        return x, g
    last = [t.movedim(-3, -1).contiguous().movedim(-1, -3) for t in (x, g)]
    return (x if layer.first else last[0]), last[1]


def operation(layer: Layer, name: str, way: str, clients: int, kind: str) -> Case:
    """One operation by PyTorch's own differentiation, the forward pass left out of the gradients."""
    x, w, b, g = draw(layer, clients, kind)
    x, g = laid(way, layer, x, g)
    compute = partial(vmap(lambda x, w, b: WAYS[way](x, w, b, layer.grid.stride, layer.grid.pad)), x, w, b)
    if name == "forward":
        return torch.no_grad()(compute)
    wanted = [x] if name == "input" else [w, b]
    for leaf in wanted:
        leaf.requires_grad_()
    y = compute()
    return lambda: torch.autograd.grad(y, wanted, g, retain_graph=True)


def step(network: str, batch: int, way: str, clients: int, kind: str) -> Case:
    """The gradient of the whole network for a batch of every client."""
    model = models.build(network, IMAGE, 10).with_conv_backend(way)  # type: ignore[arg-type]
    params = {n: p.expand(clients, *p.shape).to("cuda", KINDS[kind]).contiguous() for n, p in model.init(0).items()}
    x = torch.randn(clients, batch, *IMAGE, device="cuda", dtype=KINDS[kind])
    y = torch.randint(0, 10, (clients, batch), device="cuda")
    return lambda: vmap(grad(lambda p, x, y: F.cross_entropy(model.logits(p, x), y)))(params, x, y)


def use(kind: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"


def attempt(make: Callable[[], Case]) -> float | str:
    """Microseconds, or what went wrong."""
    try:
        return measure(make)
    except Exception as error:  # the table goes on
        with suppress(Exception):
            torch.cuda.synchronize()
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def table(network: str, batch: int, clients: list[int], ways: list[str], kinds: list[str]) -> list[dict[str, Any]]:
    """All cases, printed as they come."""
    rows = []
    makers: dict[str, Callable[..., Case]] = {
        f"{layer.name} {name}": partial(operation, layer, name)
        for layer in layers(network, batch)
        for name in layer.operations
    }
    makers["step"] = partial(step, network, batch)
    print(f"{'clients':>7} {'operation':16} {'type':8}" + "".join(f"{way:>10}" for way in ways) + "   microseconds")
    for count, name, kind in itertools.product(clients, makers, kinds):
        use(kind)
        found = {way: attempt(partial(makers[name], way, count, kind)) for way in ways}
        cells = "".join(f"{v:10.1f}" if isinstance(v, float) else f"{'error':>10}" for v in found.values())
        print(f"{count:7} {name:16} {kind:8}{cells}", flush=True)
        for way, value in found.items():
            if isinstance(value, str):
                print(f"        {way}: {value}", flush=True)
        rows.append({"clients": count, "operation": name, "type": kind, **found})
    return rows


def candidates(layer: Layer, name: str) -> list[Any]:
    """Tiles to try: those in use first."""
    from posterity.nn.kernels._convolution import Tile, contract_tile, correlate_tile

    channels, (high, wide), outputs = layer.grid.shape[1], layer.grid.window, layer.outputs
    if name == "weight":
        now = contract_tile(outputs, channels * high * wide)
    else:
        flip = name == "input"
        now = correlate_tile(*((channels, outputs * wide) if flip else (outputs, channels * wide)), flip)
    rows = {32, now.rows} if now.rows > 32 else {now.rows}
    depths = (32, 64) if name == "weight" else (16,) if now.depth == 16 else (32, 64)
    others = [Tile(r, c, d, w, s) for r in rows for c in (32, 64, 128, 256) for d in depths for w in (4, 8)
              for s in (1, 2, 3, 4) if r * c >= 1024 and (w == 4 or r * c >= 4096)]  # fmt: skip
    return [now, *(t for t in others if t != now)]


def kernel(layer: Layer, name: str, clients: int, kind: str, tile: Any) -> Case:
    """One kernel with a tile of our choice."""
    from posterity.nn.kernels import _convolution

    x, w, b, g = draw(layer, clients, kind)
    x, g = laid("triton", layer, x, g)
    if name == "forward":
        return lambda: _convolution.convolve(x, w, b, layer.grid, tile)
    if name == "input":
        return lambda: _convolution.spread(w, g, layer.grid, tile)
    return lambda: _convolution.weigh(x, g, layer.grid, tile)


def sweep(network: str, batch: int, clients: int, kinds: list[str], seconds: float) -> list[dict[str, Any]]:
    """Times of the kernels with other tiles, best five first; compiled in threads, measured one by one."""
    begun, rows = time.perf_counter(), []
    every = [(layer, name) for layer in layers(network, batch) for name in layer.operations]
    for kind, (layer, name) in itertools.product(kinds, every):
        use(kind)
        tiles = candidates(layer, name)
        if time.perf_counter() - begun > seconds:
            print(f"{layer.name} {name} {kind}: no time left", flush=True)
            continue
        with ThreadPoolExecutor(12) as pool:  # a launch compiles; what fails here fails again below, with its error
            list(pool.map(lambda tile: _compiled(kernel(layer, name, 1, kind, tile)), tiles))  # noqa: B023
        times = {tile: attempt(partial(kernel, layer, name, clients, kind, tile)) for tile in tiles}
        good = sorted((t for t in tiles if isinstance(times[t], float)), key=lambda t: times[t])
        print(f"{layer.name} {name} {kind}: now {times[tiles[0]]}, {len(tiles) - len(good)} of {len(tiles)} failed")
        for tile in good[:5]:
            print(f"    {times[tile]:8.1f}  {tile}", flush=True)
        rows += [{"layer": layer.name, "operation": name, "type": kind, **asdict(t), "found": times[t]} for t in tiles]
    return rows


def _compiled(call: Case) -> None:
    with suppress(Exception):
        call()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="cnn")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--clients", default="50,18", help="numbers of clients at once; --sweep takes the last")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sweep", action="store_true", help="other tiles for the Triton kernels")
    parser.add_argument("--seconds", type=float, default=50, help="begin no further sweep after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device.")
    begun = time.perf_counter()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    clients, kinds = [int(c) for c in options.clients.split(",")], options.kinds.split(",")
    if options.sweep:
        rows = sweep(options.network, options.batch, clients[-1], kinds, options.seconds)
    else:
        rows = table(options.network, options.batch, clients, options.ways.split(","), kinds)
    print(f"{time.perf_counter() - begun:.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
