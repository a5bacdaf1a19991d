"""FedBPS's Table 1: FedPer keeps one layer at home in its own paper; here all three fully connected ones.

`posterity compare --model fedbps_fedper:LeNet5 …` (LeNetWide for CIFAR-10) with PYTHONPATH=recipes;
docs/results/fedbps.md has the commands.
`python recipes/fedbps_fedper.py` prints how far each row of Table 1 is from it, of the runs in docs/results/raw.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from posterity.evaluate.paired import compare_pair
from posterity.papers.recipe import find
from posterity.papers.runs import gather, read_places
from posterity.papers.shown import read_samples

RAW = Path(__file__).parents[1] / "docs" / "results" / "raw"


class LeNet5(nn.Module):
    """`lenet5` with the fully connected layers as its head."""

    head = "classifier"
    filters, widths = (6, 16), (120, 84)

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        pooled, (first, second), (wide, narrow) = nn.MaxPool2d(2), self.filters, self.widths
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], first, 5),
            pooled,
            nn.ReLU(),
            nn.Conv2d(first, second, 5),
            pooled,
            nn.ReLU(),
            nn.Flatten(),
        )
        side = ((shape[1] - 4) // 2 - 4) // 2
        self.classifier = nn.Sequential(
            nn.Linear(second * side * side, wide),
            nn.ReLU(),
            nn.Linear(wide, narrow),
            nn.ReLU(),
            nn.Linear(narrow, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


class LeNetWide(LeNet5):
    """The same of `lenet_wide`, for colour images."""

    filters, widths = (64, 64), (384, 192)


def differences() -> list[str]:
    """Of every row and data set: accuracy in points less that of FedPer with this network, paired, 95 %."""
    recipe, said = find("B-T1"), []
    found = gather(recipe, read_places([RAW / "B-T1.jsonl.xz"]))
    for cell in recipe.cells:
        path = RAW / f"B-T1-fedper-head-{recipe.config(cell, {}).dataset}.jsonl.xz"
        if not path.exists():  # not run
            continue
        head = read_samples(read_places([path]), "validated", cell.shown)
        for line in recipe.lines_of(cell):
            runs = found.runs.get((cell.folder, line.name), ())
            pair = compare_pair(read_samples(runs, "validated", cell.shown), head)
            low, high = pair.interval or (float("nan"),) * 2
            said.append(
                f"{cell.name}, {line.name}: {100 * pair.difference:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"
            )
    return said


if __name__ == "__main__":
    print("\n".join(differences()))

__all__ = ["LeNet5", "LeNetWide", "differences"]
