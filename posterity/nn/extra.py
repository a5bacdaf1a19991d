"""An `nn.Module` beside the network: its parameters are leaves of a method's own, named `prefix/name`.

For methods that add layers of their own (GPFL's valve, FedCP's policy, MOON's projection). A function with
`functools.cache` makes one `Extra` for a size, so that server and clients mean the same; weights are handed in by name.
`linear_layer` finds a layer of the network itself, for methods that treat one in a way of their own.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from posterity.core.network import Network, Params
from posterity.nn.model import _LOCK, leaves_of, seeded
from posterity.settings.hyperparameters import unknown


def linear_layer(model: Network, name: str = "") -> str:
    """The linear layer of that name; without one, the last before the head."""
    layers = model.module.named_modules()
    linear = [n for n, m in layers if isinstance(m, nn.Linear) and f"{n}.weight" in model.leaves]  # none that is frozen
    if name:
        if name not in linear:
            raise ValueError(unknown("linear layer", name, linear))
        return name
    before = [n for n in linear if f"{n}.weight" in model.base_names]
    if not before:
        where = f" before its head; name one, e.g. layer={linear[-1]!r}" if linear else ""
        raise ValueError(f"The network {model.name!r} has no linear layer{where}.")
    return before[-1]


@dataclass(frozen=True, eq=False)
class Extra:
    """Layers without their weights. Batch norm and dropout are refused: they need a mask and a key."""

    prefix: str
    module: nn.Module = field(repr=False)

    def __post_init__(self) -> None:
        kinds = nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd
        if bad := [type(m).__name__ for m in self.module.modules() if isinstance(m, kinds)]:
            given = f"the extra module {self.prefix!r} holds {bad[0]}"
            raise ValueError(f"{given}; only layers without state and draws can be added")

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of its leaves among those of the visit."""
        return tuple(f"{self.prefix}/{n}" for n in leaves_of(self.module))

    @property
    def numbers(self) -> int:
        """How many its leaves have together."""
        return sum(p.numel() for p in leaves_of(self.module).values())

    def init(self, key: Tensor, like: Tensor) -> Params:
        """First values, drawn as PyTorch draws them, from the key alone; in the type and on the device of `like`."""
        with seeded(int(key[0])), torch.no_grad():
            for layer in self.module.modules():
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()
            return {f"{self.prefix}/{n}": p.detach().clone().to(like) for n, p in leaves_of(self.module).items()}

    def of(self, params: Params) -> Params:
        """Its leaves among those of the visit."""
        return {n: params[n] for n in self.leaves}

    def __call__(self, params: Params, *inputs: Tensor) -> Tensor:
        """The module's output with its leaves taken from `params`."""
        own = {n.removeprefix(f"{self.prefix}/"): p for n, p in self.of(params).items()}
        with _LOCK:  # the module is lent to one call at a time, as a network is
            output: Tensor = functional_call(self.module, own, inputs)
        return output
