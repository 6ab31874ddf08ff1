"""Trains a small network on fields in NumPy files: plain PyTorch, as it is written everywhere."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Fields(Dataset):
    """Pairs of successive temperature fields, one file for each time."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.npy"))

    def __len__(self):
        return len(self.paths) - 1

    def __getitem__(self, number):
        now, then = (np.load(path) for path in self.paths[number : number + 2])
        now = (now - now.mean()) / now.std()
        then = (then - then.mean()) / then.std()
        return torch.from_numpy(now)[None], torch.from_numpy(then)[None]


def write_fields(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(count):
        np.save(folder / f"{number:04d}.npy", generator.normal(280, 10, (128, 256)).astype("f4"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("fields"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if not arguments.data.exists():
        write_fields(arguments.data, 65)

    torch.manual_seed(arguments.seed)
    loader = DataLoader(
        Fields(arguments.data), batch_size=4, shuffle=True, num_workers=arguments.workers
    )
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(arguments.epochs):
        total = 0.0
        for now, then in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(now), then)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.6f}")
    torch.save(model.state_dict(), arguments.data / "model.pt")


if __name__ == "__main__":
    main()
