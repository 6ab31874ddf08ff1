"""Trains a small LightningModule with a Trainer, validation and a checkpoint."""

import argparse
from pathlib import Path

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Downscaling(Dataset):
    """Coarse and fine fields, both in one compressed file a sample."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.npz"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, number):
        with np.load(self.paths[number]) as arrays:
            return torch.from_numpy(arrays["coarse"])[None], torch.from_numpy(arrays["fine"])[None]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Upsample(scale_factor=4), nn.Conv2d(1, 1, 5, padding=2))

    def training_step(self, batch, number):
        coarse, fine = batch
        return nn.functional.mse_loss(self.network(coarse), fine)

    def validation_step(self, batch, number):
        coarse, fine = batch
        self.log("loss", nn.functional.mse_loss(self.network(coarse), fine))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def write_fields(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(count):
        fine = generator.random((96, 96), dtype="f4")
        coarse = fine.reshape(24, 4, 24, 4).mean((1, 3))
        np.savez_compressed(folder / f"{number:04d}.npz", coarse=coarse, fine=fine)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("downscaling"))
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.data.exists():
        write_fields(arguments.data, 72)

    lightning.seed_everything(5, verbose=False)
    data = Downscaling(arguments.data)
    train, held = torch.utils.data.random_split(data, [64, 8])
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=arguments.data,
    )
    trainer.fit(
        Model(),
        DataLoader(train, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True),
        DataLoader(held, batch_size=4),
    )
    print(f"loss {trainer.callback_metrics['loss'].item():.6f}")


if __name__ == "__main__":
    main()
