"""A WGAN's schedule: five critic batches and one generator batch are one optimiser step."""

import time

import torch


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 72

    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.full((16,), float(i))


if __name__ == "__main__":
    batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=2))
    total = 0.0
    for _step in range(6):
        for _critic in range(5):
            total += float(next(batches).sum())
            time.sleep(0.004)
        total += float(next(batches).sum())
        time.sleep(0.01)
    print(total)
