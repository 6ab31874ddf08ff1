"""Batches of the ring as tensors: right, whoever holds them for however long, and nothing left.

Under the real Lightning and accelerate, too: a loader of ours is left as it is, and works.
"""

from __future__ import annotations

import gc
import os
import warnings

import numpy as np
import pytest

pytest.importorskip("torch", reason="batches of tensors need torch")
import torch
from number_stores import expected_batch, nothing_left, write_numbers

from iobench.errors import OptionError
from iobench.torch import StoreLoader

HELD = pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
THEIRS = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:.*batches are held:UserWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "small", n_samples=24)


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch):
    before = dict(os.environ)
    with nothing_left() as alive:
        yield alive
    for name in set(os.environ) - set(before):  # accelerate's
        monkeypatch.delenv(name)


@HELD
def test_shuffled_batches_are_those_of_a_stock_loader_in_that_order(store):
    loader = StoreLoader(store, 4, shuffle=True, seed=5, threads=3)
    numbers = [loader.order.samples(0, batch).tolist() for batch in range(len(loader))]
    expected = list(torch.utils.data.DataLoader(store, batch_sampler=numbers))
    found = list(loader)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        dtypes = ({name: each.dtype for name, each in batch.items()} for batch in (ours, theirs))
        assert next(dtypes) == next(dtypes)
    assert sorted(n for batch in found for n in batch["number"].tolist()) == [*range(50)]
    store.close()  # and with it the buffers behind __getitems__


def views_of(tensor):
    return {
        "numpy of a slice": tensor[2:].numpy()[:, 1],
        "dlpack to torch": torch.from_dlpack(tensor),
        "storage": tensor.untyped_storage(),
        "slice": tensor[1:, ::2],
        "dlpack to numpy": np.from_dlpack(tensor),
        "unbound": tensor.unbind()[1],
    }


def bytes_of(view):
    if isinstance(view, torch.UntypedStorage):
        return bytes(torch.tensor([], dtype=torch.uint8).set_(view)[: 4 * 48 * 4].tolist())
    return np.ascontiguousarray(view).tobytes()


@pytest.mark.quick_cases(3)
@HELD
@pytest.mark.parametrize("name", views_of(torch.zeros(4, 6, 8)))
def test_whatever_is_made_of_a_tensor_keeps_its_batch(store, name):
    loader = StoreLoader(store, 4, depth=3)
    iterator = iter(loader)
    batch = next(iterator)
    view, expected = views_of(batch["x"])[name], bytes_of(views_of(batch["x"].clone())[name])
    del batch
    for _ in iterator:
        pass
    assert bytes_of(view) == expected
    for _ in loader:  # in another epoch, and after the loader
        pass
    del loader, iterator
    gc.collect()
    assert bytes_of(view) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, "float32", "float64"])
def test_floating_point_numbers_are_cast(store, dtype):
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    for number, batch in enumerate(StoreLoader(store, 4, dtype=dtype)):
        numbers = list(range(4 * number, min(4 * number + 4, 50)))
        expected = {n: torch.from_numpy(a) for n, a in expected_batch(numbers).items()}
        for name in ("x", "half", "y"):
            assert batch[name].dtype == wanted
            assert torch.equal(batch[name], expected[name].to(wanted))
        for name in ("number", "flag"):
            assert torch.equal(batch[name], expected[name])


@HELD
def test_a_stock_loader_makes_the_same_batches_of_a_store(store):
    subset = torch.utils.data.Subset(store, list(range(50)))
    samples = [store[number] for number in range(50)]  # a list: no __getitems__
    stock = torch.utils.data.DataLoader
    loaders = [stock(each, 4) for each in (samples, store, subset)]
    for expected, *others in zip(*map(list, loaders), strict=True):
        for batch in others:
            for name, values in expected.items():
                assert torch.equal(batch[name], values)
                assert batch[name].dtype == values.dtype
    store.close()


def test_ranks_are_those_of_torchs_process_group(store, monkeypatch):
    order = StoreLoader(store, 4, shuffle=True, seed=1).order
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    found = [batch["number"].tolist() for batch in StoreLoader(store, 4, shuffle=True, seed=1)]
    assert found == [order.samples(0, batch % 13).tolist() for batch in range(1, 14, 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int32"}, "dtype='int32': expected a floating-point dtype"),
        ({"dtype": "float33"}, "dtype='float33'"),
        ({"device": "gpu"}, "device='gpu': expected 'cpu', 'cuda'"),
        ({"device": "mps"}, "device='mps': expected 'cpu', 'cuda'"),
        ({"num_workers": 2}, "no option 'num_workers'; there are depth, .*threads"),
        ({"transform": 3}, "transform=3: expected a function"),
        ({"threads": "2"}, "threads='2': expected a whole number"),
    ],
)
def test_options_that_cannot_be_are_refused(store, options, message):
    with pytest.raises(OptionError, match=message) as caught:
        StoreLoader(store, 4, **options)
    assert "\n" not in str(caught.value)


# ---- in frameworks


def loader_of(store, **options):
    return StoreLoader(store, 4, shuffle=True, seed=3, dtype="float32", **options)


def epochs_of(store, n_epochs=2):
    loader = loader_of(store)
    return [
        loader.order.samples(epoch, batch).tolist()
        for epoch in range(n_epochs)
        for batch in range(len(loader))
    ]


def loss_of(layer, batch):
    return ((layer(batch["x"].flatten(1)) - batch["y"]) ** 2).mean()


class TestLightning:
    pytestmark = THEIRS

    def fit(self, store, folder, *, save_after=-1, **options):
        """Train for two epochs; return the samples of each batch."""
        lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
        seen: list[list[int]] = []

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(48, 2)

            def training_step(self, batch, index):
                seen.append(batch["number"].tolist())
                return loss_of(self.layer, batch)

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
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.fit(Model(), datamodule=Data(), weights_only=True, **options)
        assert not [w for w in caught if "many workers" in str(w.message)]
        return seen

    @pytest.mark.quick_cases(1)
    @pytest.mark.parametrize("save_after", [6, 2, 8])
    def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch(self, small, tmp_path, save_after):
        whole = self.fit(small, tmp_path, save_after=save_after)
        assert whole == epochs_of(small)
        rest = self.fit(small, tmp_path, ckpt_path=tmp_path / "middle.ckpt")
        assert rest == whole[save_after:]


class TestAccelerate:
    pytestmark = THEIRS

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
                    accelerator.backward(loss_of(model, batch))
                    optimiser.step()
                    optimiser.zero_grad()
                seen.append(batch["number"].tolist())
                if len(seen) == 8 and not folder.exists():
                    accelerator.save_state(folder)
                    return seen
        return seen

    def test_prepared_it_is_itself_and_its_state_is_kept(self, small, tmp_path):
        begun = self.train(small, range(2), folder=tmp_path / "state")
        rest = self.train(small, range(1, 2), folder=tmp_path / "state")
        assert begun + rest == epochs_of(small)
