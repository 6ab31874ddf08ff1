"""Samples whose stages take known times, importable by spawn and by scripts."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset

READ_MS, DECODE_MS, COLLATE_MS = 2.0, 1.0, 0.5


def spend(milliseconds: float) -> None:
    time.sleep(milliseconds / 1e3)


class Sleeping(Dataset):
    """A sample is read and decoded by sleeping."""

    def __init__(self, n_samples: int, scale: float = 1.0) -> None:
        self.n_samples, self.scale = n_samples, scale

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.decode(self.read(number))

    def read(self, number: int) -> int:
        spend(READ_MS * self.scale)
        return number

    def decode(self, number: int) -> torch.Tensor:
        spend(DECODE_MS * self.scale)
        return torch.tensor([number])


class SleepingCollate:
    """Stacks samples, slowly."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        spend(COLLATE_MS * self.scale)
        return torch.stack(samples)
