"""Sums over the rows of a batch of weight · g², where g = Jᵀ root is the gradient of one row.

The network is in evaluation mode, so rows are independent and one backward pass of the batch finds the slope δ of every
row at the output of every layer. Where a layer sees a sample once, its input a and this slope give the row's gradient:

    linear, on a vector                                δ aᵀ             its square is δ² (a²)ᵀ: one product for all rows
    linear on a sequence, convolution (l: its places)  Σ_l δ_l a_lᵀ     a product for every row; its bias sees a 1
    batch norm                                         Σ_l δ_l a_l      a is what it normalised; Σ_l δ_l for its bias

All other leaves (of layers that are used twice or tied, or of other kinds) get a gradient for every row by a second
walk, one row at a time; it holds rows x parameters.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn import functional as F

from posterity.core import Batch, Network, Params, tree_map
from posterity.nn.convolution import Convolution
from posterity.nn.layers import Norm

Layer = nn.Linear | Convolution | Norm
Roots = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # a row's output and mark: weights (R,), roots (R, ...)


@dataclass(frozen=True)
class LayerShapes:
    """A layer that sees a sample once: the shapes of one row at its input and output."""

    layer: Layer
    inside: tuple[int, ...]
    outside: tuple[int, ...]

    @property
    def on_vectors(self) -> bool:
        return isinstance(self.layer, nn.Linear) and len(self.inside) == 1

    @property
    def held(self) -> int:
        """Numbers that a row holds while it is squared: its pieces and slopes, a gradient and its square."""
        outputs, width = self.outside[0], 1  # a batch norm's
        if isinstance(self.layer, nn.Linear):
            outputs, width = self.outside[-1], self.inside[-1]
        if isinstance(self.layer, Convolution):
            width = self.layer.weight[0].numel()
        if not (self.on_vectors or isinstance(self.layer, Norm)):
            width = _widened(width)
        places = torch.Size(self.outside).numel() // outputs
        gradient = 0 if self.on_vectors else 2 * outputs * width
        return places * (width + 2 * outputs) + gradient


_KNOWN: WeakKeyDictionary[Network, dict[tuple[int, ...], dict[str, LayerShapes]]] = WeakKeyDictionary()


def sum_squares(moving: Params, params: Params, batch: Batch, model: Network, marks: Tensor, roots: Roots) -> Params:
    """Σ_rows Σ_r weight_r (Jᵀ root_r)² of the leaves `moving`; `marks` (B, ...) has what `roots` wants to know."""
    layers = single_layers(params, batch.x[:1], model)
    found = _by_layers(layers, params, batch, model, marks, roots) if layers else {}
    apart = {n: p for n, p in moving.items() if n not in found}
    if apart:
        found |= _by_rows(apart, params, batch, model, marks, roots)
    return {n: found[n] for n in moving}


def held_numbers(rows: int, model: Network) -> int:
    """Numbers that are held while the gradients of so many rows are squared."""
    layers: Mapping[str, LayerShapes] = {}
    if model.shape is not None:
        layers = _KNOWN.get(model, {}).get(model.shape) or single_layers(
            model.init(0), torch.zeros(1, *model.shape), model
        )
    together = {leaf for name in layers for leaf in _leaves(name)}
    each = sum(p.numel() for n, p in model.module.named_parameters() if n in model.trainable and n not in together)
    return rows * (4 * each + sum(shapes.held for shapes in layers.values()))


def single_layers(params: Params, x: Tensor, model: Network) -> dict[str, LayerShapes]:
    """The layers that see a sample x (1, ...) once and whose gradients are squared by layer; found once a network."""
    known = _KNOWN.setdefault(model, {})
    row = tuple(x.shape[1:])
    if row not in known:
        few, more = _seen(params, x, model), _seen(params, x.expand(2, *row), model)
        known[row] = {n: few[n] for n in few if few[n] == more.get(n)}
    return known[row]


def _seen(params: Params, x: Tensor, model: Network) -> dict[str, LayerShapes]:
    """Layers that were called once, with one entry of input and output for every row of x."""
    layers, calls, found = _squarable(model), Counter[str](), dict[str, LayerShapes]()

    def note(name: str, given: Tensor, output: Tensor) -> Tensor:
        calls[name] += 1 if len(given) == len(output) == len(x) else 2
        found[name] = LayerShapes(layers[name], tuple(given.shape[1:]), tuple(output.shape[1:]))
        return output

    model(params, x, around={name: partial(note, name) for name in layers})
    return {name: shapes for name, shapes in found.items() if calls[name] == 1}


def _squarable(model: Network) -> dict[str, Layer]:
    """Layers of a kind that is squared by layer, whose weights no other layer has; none if rows see each other."""
    if any(isinstance(layer, Norm) and layer.running_mean is None for layer in model.module.modules()):
        return {}
    owners = Counter(id(p) for layer in model.module.modules() for p in layer._parameters.values() if p is not None)
    return {
        name: layer
        for name, layer in model.module.named_modules()
        if isinstance(layer, Layer) and _usual(layer)
        if all(owners[id(p)] == 1 for p in layer.parameters())
    }


def _usual(layer: Layer) -> bool:
    """Whether it computes what its class says, with a weight of its own; plain convolutions are `Convolution`."""
    if isinstance(layer, nn.Linear):
        return type(layer).forward is nn.Linear.forward
    return type(layer) in (Convolution, Norm) and layer.weight is not None


# --- by layers
def _by_layers(
    layers: Mapping[str, LayerShapes], params: Params, batch: Batch, model: Network, marks: Tensor, roots: Roots
) -> Params:
    """The squares of these layers' leaves: a backward pass for every root."""
    real = batch.mask  # zeros are made with its dtype and on its device: a capture allows no copy to the device
    zeros = {n: torch.zeros(len(real), *s.outside, dtype=real.dtype, device=real.device) for n, s in layers.items()}

    def output_of(shifts: Params) -> tuple[Tensor, Params]:
        seen: Params = {}
        around = {n: partial(_shifted, n, shift, seen) for n, shift in shifts.items()}
        return model(params, batch.x, around=around)[0], seen

    output, pull, seen = vjp(output_of, zeros, has_aux=True)  # type: ignore[misc]  # two, says PyTorch
    weights, directions = vmap(roots)(output, marks)  # (B, R), (B, R, ...)
    shares = (weights * real[:, None]).sqrt()
    pieces = {n: _pieces(n, s, seen[n].to(real), params) for n, s in layers.items()}
    total: Params = {}
    for r in range(shares.shape[1]):
        (slopes,) = pull(directions[:, r])
        for name, shapes in layers.items():
            slope = slopes[name] * shares[:, r].reshape(-1, *[1] * len(shapes.outside))
            for leaf, term in zip(_leaves(name), _squared(shapes, pieces[name], slope), strict=True):
                total[leaf] = total[leaf] + term if leaf in total else term
    for name, shapes in layers.items():
        weight, _ = _leaves(name)
        total[weight] = _finished(shapes, total[weight], pieces[name])
    return total


def _shifted(name: str, shift: Tensor, seen: Params, given: Tensor, output: Tensor) -> Tensor:
    """The output of a layer that sees `given`, moved by a shift of 0: its slope is the output's."""
    seen[name] = given
    return output + shift.to(output)


def _pieces(name: str, shapes: LayerShapes, given: Tensor, params: Params) -> Tensor:
    """What a layer multiplies with its weights: vectors (B, K), pieces (B, L, K), or normalised numbers (B, C, L)."""
    layer = shapes.layer
    if isinstance(layer, Norm):
        mean, var = (params[f"{name}.{n}"].to(given)[:, None] for n in ("running_mean", "running_var"))
        return (given.reshape(*given.shape[:2], -1) - mean) * torch.rsqrt(var + layer.eps)
    if shapes.on_vectors:
        return given
    if isinstance(layer, Convolution):
        return _with_one(_windows(layer, given))
    return _with_one(given.reshape(len(given), -1, given.shape[-1]))


def _widened(width: int) -> int:
    """A place for the bias, and as many as make rows of four numbers: tensor cores take no others well."""
    return width + 4 - width % 4


def _with_one(pieces: Tensor) -> Tensor:
    """Pieces (B, L, K) with a 1 that their bias is multiplied with, then zeros."""
    one = F.pad(torch.ones_like(pieces[..., :1]), (0, _widened(pieces.shape[-1]) - pieces.shape[-1] - 1))
    return torch.cat([pieces, one], -1)


def _windows(layer: Convolution, x: Tensor) -> Tensor:
    """The windows (B, H' W', C h w) of images (B, C, H, W), row by row: products of `gather`'s take twice as long."""
    assert isinstance(layer.padding, tuple)  # a word is no plain convolution
    (high, wide), (down, along) = layer.padding, layer.stride
    x = F.pad(x, (wide, wide, high, high)) if high or wide else x
    cells = x.unfold(2, layer.kernel_size[0], down).unfold(3, layer.kernel_size[1], along)  # (B, C, H', W', h, w)
    return cells.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def _squared(shapes: LayerShapes, pieces: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Squares of weight and bias, added up over the rows; of a layer on vectors the squared slopes (B, O) instead."""
    if shapes.on_vectors:
        square = slope * slope
        return square, square.sum(0)
    if isinstance(shapes.layer, Norm):
        slope = slope.reshape(pieces.shape)  # (B, C, L)
        return _row_squares((slope * pieces).sum(-1)), _row_squares(slope.sum(-1))
    convolved = isinstance(shapes.layer, Convolution)
    slope = slope.flatten(2) if convolved else slope.reshape(*pieces.shape[:2], -1).transpose(1, 2)  # (B, O, L)
    square, width = _row_squares(slope @ pieces), shapes.layer.weight[0].numel()
    return square[:, :width], square[:, width]


def _row_squares(rows: Tensor) -> Tensor:
    return (rows * rows).sum(0)  # not `vector_norm`: forty times as slow on a CPU


def _finished(shapes: LayerShapes, total: Tensor, pieces: Tensor) -> Tensor:
    """The squares of a layer's weight, in its shape."""
    square = total.T @ (pieces * pieces) if shapes.on_vectors else total
    assert shapes.layer.weight is not None
    return square.reshape(shapes.layer.weight.shape)


def _leaves(layer: str) -> tuple[str, str]:
    return f"{layer}.weight", f"{layer}.bias"


# --- row by row
def _by_rows(apart: Params, params: Params, batch: Batch, model: Network, marks: Tensor, roots: Roots) -> Params:
    """The squares of any leaves, from a gradient for every row."""

    def one(x: Tensor, mark: Tensor) -> Params:
        output, pull = vjp(lambda some: model({**params, **some}, x[None])[0][0], apart)[:2]
        weights, directions = roots(output, mark)
        terms = (tree_map(partial(_weighted_square, w), pull(d)[0]) for w, d in zip(weights, directions, strict=True))
        return reduce(lambda total, term: tree_map(torch.add, total, term), terms)

    return {n: torch.tensordot(batch.mask, leaf, dims=1) for n, leaf in vmap(one)(batch.x, marks).items()}


def _weighted_square(weight: Tensor, g: Tensor) -> Tensor:
    return weight * g * g
