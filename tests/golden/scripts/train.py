"""Trains for two epochs on the arrays of ``data`` with one worker; prints what came out of it."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch


class Arrays(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*.npy"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        return torch.from_numpy(np.load(self.files[number])).mean(dim=0)


def train(folder, epochs=2, sampler=None):
    """Return the sum of all batches."""
    total = 0.0
    loader = torch.utils.data.DataLoader(
        Arrays(folder), batch_size=2, num_workers=1, sampler=sampler
    )
    for _epoch in range(epochs):
        for batch in loader:
            total += float(batch.sum(dtype=torch.float64))
    return total


def main():
    total = train(os.environ.get("TRAIN_DATA", "data"))
    told = f"{total:.9f} {sys.argv[1:]} {os.environ.get('TRAIN_NOTE')} {__name__}"
    print(told)
    Path("results.txt").write_text(f"{told}\n")
    if "fail" in sys.argv:
        sys.exit(3)
    if "signal" in sys.argv:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
