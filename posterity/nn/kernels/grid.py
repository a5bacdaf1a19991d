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
