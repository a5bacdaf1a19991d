"""Augmentation: pictures that clients train on are cropped and flipped at random, every time that they are seen.

It wraps the passes of a round (`Simulation.passes`), so that neither methods nor engines know of it: a step finds its
batch already changed. What is drawn for a row depends on the key of its step and on its place in the batch, so it is
the same in every engine, block and resumed run, whatever padding stands behind it.

Only what trains is augmented: passes that learn, or whose order is drawn, on the client's training part; fine-tuning
is training too (`adapt`), for it goes on with the same loss on the same pictures. What only looks at the data, in
their order (`gather`: curvature, prototypes, counts), what prepares predictions (`prepare`) and all scores see pictures
as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.core import random
from posterity.core.network import Network
from posterity.core.protocol import Batch, Carry, Here, Pass
from posterity.data.federation import Federation
from posterity.engine.keys import AUGMENT
from posterity.settings.hyperparameters import split_list

PAD = 4  # pixels that a crop adds on every side (He et al. 2016, CIFAR-10)
NAMES = ("crop", "flip")


@dataclass(frozen=True)
class Augmentation:
    shape: tuple[int, int, int]
    crop: bool = False  # padded by PAD pixels on every side, and one of the places where it fits in taken
    flip: bool = False  # left and right exchanged in every second case
    border: float = 0.0  # what the padding holds

    @staticmethod
    def parse(text: str | None, federation: Federation) -> Augmentation | None:
        """From "crop", "flip" or "crop,flip", for the pictures of a federation; None: none."""
        if text is None:
            return None
        asked = split_list(text)
        if not asked or (unknown := [name for name in asked if name not in NAMES]):
            given = f"{unknown[0]!r} of {text!r}" if asked else repr(text)
            raise ValueError(f"augment takes {', '.join(NAMES)} or {','.join(NAMES)}; {given} is not known")
        shape = _picture(text, federation)
        darkest = float(federation.x.min())  # black, on whatever scale: bytes are from -1 to 1 here
        return Augmentation(shape, "crop" in asked, "flip" in asked, darkest if math.isfinite(darkest) else 0.0)

    @property
    def remark(self) -> str:
        """In a sentence: what a reader of the results must know."""
        done = " and ".join(word for word, asked in (("cropped", self.crop), ("flipped", self.flip)) if asked)
        return (f"training pictures are {done} at random, in rounds and in fine-tuning; scores, and passes that only "
                "look at the data (statistics of features, curvature, counts), see them as they are")  # fmt: skip

    def apply(self, x: Tensor, key: Tensor) -> Tensor:
        """Pictures (B, channels, height, width) as the key draws them; row i depends on the key and on i alone."""
        place, side = random.bits(key, len(x))  # (B,) two words a row
        offsets = 2 * PAD + 1
        zero = torch.zeros_like(place)
        down, along = (place % offsets - PAD, place // offsets % offsets - PAD) if self.crop else (zero, zero)
        return moved(x, down, along, side & 1 if self.flip else zero, self.border)


def moved(x: Tensor, down: Tensor, along: Tensor, flipped: Tensor, border: float) -> Tensor:
    """Of each picture the window that lies `down` and `along` pixels off, mirrored where `flipped` is 1.

    Indices are computed and the pixels gathered: no shape depends on a draw, so it can be mapped and captured.
    """
    height, width = x.shape[-2:]
    row = torch.arange(height, device=x.device) + down[:, None]  # (B, height)
    column = torch.arange(width, device=x.device)
    column = torch.where(flipped[:, None] > 0, width - 1 - column, column) + along[:, None]  # (B, width)
    inside = _within(row, height)[:, :, None] & _within(column, width)[:, None, :]
    pixel = row.clamp(0, height - 1)[:, :, None] * width + column.clamp(0, width - 1)[:, None, :]
    flat = x.flatten(2)
    taken = flat.gather(2, pixel.flatten(1)[:, None].expand(flat.shape)).reshape(x.shape)
    return torch.where(inside[:, None], taken, border)


def augmented(passes: tuple[Pass, ...], augmentation: Augmentation | None) -> tuple[Pass, ...]:
    """`passes`, of which those that train see augmented pictures."""
    if augmentation is None:
        return passes
    return tuple(_augmented(each, augmentation) if _trains(each) else each for each in passes)


def _trains(each: Pass) -> bool:
    """Whether a pass trains something; FedALA's weights are learnt by a pass that fine-tuning does not repeat."""
    return each.on == "train" and (each.learns or each.shuffle)


def _augmented(each: Pass, augmentation: Augmentation) -> Pass:
    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        x = augmentation.apply(batch.x, random.fold(here.key, AUGMENT))
        return each.step(carry, replace(batch, x=x), here)

    def scratch(rows: int, model: Network) -> int:
        channels, height, width = augmentation.shape
        held = rows * height * width * (channels + 4)  # the new pictures, and two indices of 64 bits for a pixel
        return held + (each.scratch(rows, model) if each.scratch else 0)

    return replace(each, step=step, scratch=scratch)


def _within(place: Tensor, size: int) -> Tensor:
    return (place >= 0) & (place < size)


def _picture(text: str, federation: Federation) -> tuple[int, int, int]:
    shape = federation.shape
    if len(shape) != 3 or not federation.x.is_floating_point():
        raise ValueError(f"augment = {text!r} needs pictures (channels, height, width); samples of {federation.name} "
                         f"have the shape {shape}: leave it out, or use a dataset of pictures")  # fmt: skip
    channels, height, width = shape
    if "crop" in split_list(text) and min(height, width) <= PAD:
        raise ValueError(f"augment = {text!r} moves pictures by up to {PAD} pixels; those of {federation.name} have "
                         f"{height}×{width}, of which nothing might be left: take larger ones, or flip")  # fmt: skip
    return channels, height, width
