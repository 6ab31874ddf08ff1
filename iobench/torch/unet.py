"""The U-Net of D2.3's application A4: three levels, two convolutions each, batch normalisation."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn import functional

__all__ = ["FILTERS", "TINY_FILTERS", "UNet"]

FILTERS: Final = (32, 64, 128)
TINY_FILTERS: Final = (4, 8, 16)


class Twice(nn.Module):  # type: ignore[misc]
    """Two convolutions, each normalised."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (n_in, n_out):
            layers += [
                nn.Conv2d(channels, n_out, 3, padding=1),
                nn.BatchNorm2d(n_out),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return as many values, in other channels."""
        return self.layers(values)


class UNet(nn.Module):  # type: ignore[misc]
    """Levels of these many filters, each half as fine as the one before, and back up again."""

    def __init__(self, n_channels: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(Twice, (n_channels, *filters), filters))
        lower = filters[:0:-1]
        upper = filters[-2::-1]
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(low, high, 2, stride=2)
            for low, high in zip(lower, upper, strict=True)
        )
        self.join = nn.ModuleList(Twice(2 * high, high) for high in upper)
        self.last = nn.Conv2d(filters[0], 1, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return one field for fields of any size."""
        kept = []
        for number, level in enumerate(self.down):
            values = level(values if not number else functional.max_pool2d(values, 2))
            kept.append(values)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            skipped = kept.pop()
            values = up(values)
            missing = skipped.shape[-1] - values.shape[-1], skipped.shape[-2] - values.shape[-2]
            values = functional.pad(values, (0, missing[0], 0, missing[1]))  # of odd sizes
            values = join(torch.cat([skipped, values], dim=1))
        return self.last(values)
