"""1,797 handwritten digits, 8×8, ten classes: small enough to be part of the package.

The test set of the "Optical Recognition of Handwritten Digits" collection (E. Alpaydin, C. Kaynak, UCI, 1998;
CC BY 4.0), the same that scikit-learn offers as `load_digits`. Pixels 0–16 are stored as bytes.
"""

from pathlib import Path

import torch

from posterity.data.archives import read_npz
from posterity.data.files import labelled
from posterity.data.pool import Pool

NATURAL = False


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(Path(__file__).with_name("digits.npz"))
    x = (torch.from_numpy(stored["x"]).float() / 16 - 0.5) / 0.5
    return labelled("digits", x[:, None], stored["y"], "0123456789")
