"""Training: 24 batches an epoch. Validation: 10 batches in the loop. A checkpoint an epoch."""

import time
from pathlib import Path

import torch


class Samples(torch.utils.data.Dataset):
    def __init__(self, n, seconds):
        self.n, self.seconds = n, seconds

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return torch.full((1000,), i / 1000)


def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(1000, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    train = torch.utils.data.DataLoader(
        Samples(96, 0.001), batch_size=4, num_workers=1, shuffle=True, persistent_workers=True
    )
    validation = torch.utils.data.DataLoader(Samples(40, 0.002), batch_size=4)
    total = 0.0
    for _epoch in range(2):
        net.train()
        for x in train:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
            time.sleep(0.002)
        net.eval()
        with torch.no_grad():
            for x in validation:
                total += float(x.sum())
        torch.save({"weights": torch.zeros(100_000)}, Path("checkpoint.pt"))
    print(f"{total:.3f}")


if __name__ == "__main__":
    main()
