"""What was done to samples on their way into a federation, so that new ones can go the same way: raw rows go in.

`data/assemble.py` writes it down, a run's folder keeps it (`experiment/resume.py`), and `Result.predict_proba`
applies it. It holds means and deviations of features, and no row.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.data.files import pictures as as_pictures
from posterity.data.pool import DataError, check_features, tensor_of
from posterity.settings.hyperparameters import nearest


@dataclass(frozen=True)
class Preprocessing:
    """The way of a sample: bytes of a picture to [-1, 1], or features less a shift, divided by a scale.

    `shift` and `scale` are (clients, *shape), or (1, *shape) where all clients have the same, in double precision; None
    where features go in as they are. A newcomer has its own, of its own training rows.
    """

    columns: tuple[str, ...] = ()  # names of the features, where they have names
    pictures: bool = False  # bytes became numbers from -1 to 1
    shift: Tensor | None = None
    scale: Tensor | None = None

    def apply(self, x: Any, client: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Raw samples as the client's model expects them: of `shape`, in the type of the federation's samples.

        Columns of a data frame are found by their names; an array has them in the order of `columns`.
        """
        raw = x.detach().cpu() if isinstance(x, Tensor) else tensor_of(_as_array(x, self.columns), "x")
        if raw.dtype == torch.uint8 and len(shape) == 3 and dtype.is_floating_point:
            raw = self._picture(raw, shape)
        if tuple(raw.shape[1:]) != shape:
            wanted = f"(samples, {', '.join(map(str, shape))})"
            raise ValueError(f"x has shape {tuple(raw.shape)}; expected {wanted}")
        check_features(raw, "x", self.columns)
        if self.pictures and raw.numel() and (top := float(raw.abs().max())) > 1 + 1e-6:
            wanted = "bytes (uint8, 0 to 255), or numbers from -1 to 1 (a byte / 127.5 - 1)"
            raise DataError(f"x has values up to {top:g} in type {raw.dtype}; expected {wanted}; convert it")
        if not dtype.is_floating_point:  # indices of an embedding
            if raw.is_floating_point() and bool((odd := raw[raw != raw.round()]).numel()):
                raise DataError(f"x holds {float(odd[0]):g}; expected whole numbers, as the run was trained on")
            return raw.to(dtype)
        if self.shift is None or self.scale is None:
            return raw.to(dtype)
        row = client if len(self.shift) > 1 else 0
        single = raw.float().double()  # as the training rows were read
        return ((single - self.shift[row]) / self.scale[row]).float().to(dtype)

    def _picture(self, raw: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Bytes as they are in an .npz: channels last, first, or none."""
        if not self.pictures:
            wanted = "numbers as in the federation's x; convert them as its dataset does (most: x / 127.5 - 1)"
            raise DataError(f"x holds bytes (uint8), but this run's pictures were no bytes; expected {wanted}")
        channels_first = tuple(raw.shape[1:]) == shape and shape[0] in (1, 3) and raw.shape[-1] not in (1, 3)
        return as_pictures((raw.permute(0, 2, 3, 1) if channels_first else raw).numpy())


def _as_array(x: Any, columns: tuple[str, ...]) -> Any:
    """The features of a data frame in the order of `columns`; a mix of types (numbers, truth values) as numbers."""
    names = getattr(x, "columns", None)
    if columns and names is not None and all(isinstance(name, str) for name in names):
        if missing := [name for name in columns if name not in names]:
            raise DataError(f"x has no column {missing[0]!r}; {nearest(missing[0], list(names))}")
        x = x[list(columns)]
    array = np.asarray(x)
    try:
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except (ValueError, TypeError) as error:
        raise DataError(f"x holds what is no number ({error}); expected numbers; convert or remove it") from None


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A hash of all values and shapes: data in which one number was edited have another."""
    found = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().contiguous()
        found.update(f"{array.dtype} {tuple(array.shape)} ".encode())
        found.update(array.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return found.hexdigest()
