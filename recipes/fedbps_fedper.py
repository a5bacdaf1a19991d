"""FedBPS's Table 1: FedPer keeps one layer at home in its own paper; here all three fully connected ones.

`posterity compare --model fedbps_fedper:LeNet5 …` with PYTHONPATH=recipes; docs/results/fedbps.md has the commands.
"""

from __future__ import annotations

from torch import Tensor, nn


class LeNet5(nn.Module):
    """`lenet5` with the fully connected layers as its head."""

    head = "classifier"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        pooled = nn.MaxPool2d(2)
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], 6, 5), pooled, nn.ReLU(), nn.Conv2d(6, 16, 5), pooled, nn.ReLU(), nn.Flatten()
        )
        side = ((shape[1] - 4) // 2 - 4) // 2
        self.classifier = nn.Sequential(
            nn.Linear(16 * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


__all__ = ["LeNet5"]
