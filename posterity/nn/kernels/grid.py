"""Where a convolution's windows lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WindowGrid:
    """Where the windows of an image lie."""

    shape: tuple[int, ...]  # B, C, H, W
    window: tuple[int, int]  # h, w
    stride: tuple[int, int]
    pad: tuple[int, int] = (0, 0)  # zeros around the image; `gather` and `scatter` take images that have them already

    @property
    def places(self) -> tuple[int, int]:
        """Windows along each axis: H', W'."""
        high, wide = ((self.shape[2 + i] + 2 * self.pad[i] - self.window[i]) // self.stride[i] + 1 for i in (0, 1))
        return high, wide

    @property
    def numbers(self) -> list[int]:
        """All of it, as operators of PyTorch take it."""
        return [*self.shape, *self.window, *self.stride, *self.pad]

    @staticmethod
    def of(n: list[int]) -> WindowGrid:
        return WindowGrid((n[0], n[1], n[2], n[3]), (n[4], n[5]), (n[6], n[7]), (n[8], n[9]))
