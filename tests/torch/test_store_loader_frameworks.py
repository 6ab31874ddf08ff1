"""Under the real Lightning and accelerate: a loader of ours is left as it is, and works."""

from __future__ import annotations

import os
import warnings

import pytest

pytest.importorskip("torch", reason="batches of tensors need torch")
import torch
from number_stores import nothing_left, write_numbers

from iobench.torch import StoreLoader

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),  # theirs
    pytest.mark.filterwarnings("error:.*batches are held:UserWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers", n_samples=24)


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch):
    before = dict(os.environ)
    with nothing_left():
        yield
    for name in set(os.environ) - set(before):  # accelerate's
        monkeypatch.delenv(name)


def loader_of(store, **options):
    return StoreLoader(store, 4, shuffle=True, seed=3, dtype="float32", **options)


def epochs_of(store, n_epochs):
    loader = loader_of(store)
    return [
        loader.order.samples(epoch, batch).tolist()
        for epoch in range(n_epochs)
        for batch in range(len(loader))
    ]


class TestLightning:
    @pytest.fixture
    def lightning(self):
        return pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    def fit(self, lightning, store, folder, *, save_after=-1, **options):
        """Train for two epochs; return the samples of each batch."""
        seen: list[list[int]] = []

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(48, 2)

            def training_step(self, batch, index):
                seen.append(batch["number"].tolist())
                return ((self.layer(batch["x"].flatten(1)) - batch["y"]) ** 2).mean()

            def on_train_batch_end(self, *_):
                if len(seen) == save_after:
                    self.trainer.save_checkpoint(folder / "middle.ckpt")

            def validation_step(self, batch, index):
                assert batch["number"].tolist() == list(range(index * 8, index * 8 + 8))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1e-6)

        class Data(lightning.LightningDataModule):
            def train_dataloader(self):
                return loader_of(store)

            def val_dataloader(self):
                return StoreLoader(store, 8, dtype="float32")

        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(Model(), datamodule=Data(), weights_only=True, **options)
        return seen

    def test_epochs_of_a_data_module_are_ours(self, lightning, store, tmp_path):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert self.fit(lightning, store, tmp_path) == epochs_of(store, 2)
        assert not [w for w in caught if "many workers" in str(w.message)]

    @pytest.mark.quick_cases(1)
    @pytest.mark.parametrize("save_after", [2, 6, 8])
    def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch(
        self, lightning, store, tmp_path, save_after
    ):
        whole = self.fit(lightning, store, tmp_path, save_after=save_after)
        rest = self.fit(lightning, store, tmp_path, ckpt_path=tmp_path / "middle.ckpt")
        assert whole == epochs_of(store, 2)
        assert rest == whole[save_after:]


class TestAccelerate:
    def train(self, store, epochs, *, folder):
        """Train, saving in the middle of epoch 1; go on from there where something was saved."""
        accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
        accelerator = accelerate.Accelerator(cpu=True)
        model = torch.nn.Linear(48, 2)
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
        given = loader_of(store, device=accelerator.device)
        model, optimiser, loader = accelerator.prepare(model, optimiser, given)
        assert loader is given
        accelerator.register_for_checkpointing(loader)
        if folder.exists():
            accelerator.load_state(folder)
        seen: list[list[int]] = []
        for epoch in epochs:
            loader.set_epoch(epoch)
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = ((model(batch["x"].flatten(1)) - batch["y"]) ** 2).mean()
                    accelerator.backward(loss)
                    optimiser.step()
                    optimiser.zero_grad()
                seen.append(batch["number"].tolist())
                if len(seen) == 8 and not folder.exists():
                    accelerator.save_state(folder)
                    return seen
        return seen

    def test_prepared_it_is_itself_and_its_state_is_kept(self, store, tmp_path):
        begun = self.train(store, range(2), folder=tmp_path / "state")
        rest = self.train(store, range(1, 2), folder=tmp_path / "state")
        assert begun + rest == epochs_of(store, 2)


class TestFabric:
    def test_a_real_data_loader_hands_our_batches_on(self, store):
        fabric = pytest.importorskip("lightning.fabric", reason="lightning is not installed")
        made = fabric.Fabric(accelerator="cpu", devices=1)
        made.launch()
        loader = loader_of(store)
        given = loader.data_loader()
        with pytest.raises(TypeError, match="Only PyTorch DataLoader"):
            made.setup_dataloaders(loader)
        prepared = made.setup_dataloaders(given)
        assert len(prepared) == 6
        seen = [batch["number"].tolist() for _ in range(2) for batch in prepared]
        assert seen == epochs_of(store, 2)
