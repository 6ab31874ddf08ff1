"""The U-Net of D2.3's application A4, and its training on the batches of a measured loop.

Three levels, two convolutions each, batch normalisation. Fields of two dimensions are trained on:
all else in a sample is left out.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional

from iobench.errors import OptionError
from iobench.frozen import frozen
from iobench.recording.device_lane import DeviceLane, DeviceRegion
from iobench.recording.kinds import Kind
from iobench.torch.tensors import as_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.loaders.contract import Batch
    from iobench.recording.clocks import DeviceClock
    from iobench.recording.recorder import Recorder
    from iobench.samples import SampleSpec, Variable

FILTERS: Final = (32, 64, 128)
TINY_FILTERS: Final = (4, 8, 16)
TINY_POINTS: Final = 1024
"""Of grids of no more points the model has `TINY_FILTERS`: as stand-ins of tests have them."""
LEAST_SIDE: Final = 2 ** len(FILTERS)
"""A side is halved from level to level, and has two points in the last one."""
LEARNING_RATE: Final = 1e-3
FINAL_BATCHES: Final = 10
"""Whose losses a run ends with, in the mean: that of one batch tells of its samples alone."""
REGIONS_PER_FLUSH: Final = 64
NO_FIELD: Final = (
    "--compute unet: it trains on fields of floating-point numbers in two dimensions besides "
    f"channels, {LEAST_SIDE} points or more along each, and no {{what}} is one ({{shapes}}); give "
    "--compute published, or a time such as 25ms"
)


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

    def __init__(self, n_channels: int, filters: tuple[int, ...], n_targets: int = 1) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(Twice, (n_channels, *filters), filters))
        lower = filters[:0:-1]
        upper = filters[-2::-1]
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(low, high, 2, stride=2)
            for low, high in zip(lower, upper, strict=True)
        )
        self.join = nn.ModuleList(Twice(2 * high, high) for high in upper)
        self.last = nn.Conv2d(filters[0], n_targets, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return as many fields as there are targets, for fields of any size."""
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


@frozen
class TrainedField:
    """A variable whose last two dimensions, but for channels, are a grid.

    Parameters
    ----------
    axes : tuple of int
        Of a batch: samples, all that become channels, and the two of the grid.
    """

    name: str
    axes: tuple[int, ...]
    grid: tuple[int, int]
    n_channels: int

    @classmethod
    def of(cls, variable: Variable) -> TrainedField | None:
        """Return a variable as a field; None where it is none."""
        shape, dtype = variable.shape, variable.unpacked.dtype
        grid = [axis for axis, dim in enumerate(variable.dims) if dim != "channel"][-2:]
        if dtype[1:] not in ("f2", "f4", "f8") or len(grid) < 2:
            return None
        height, width = (shape[axis] for axis in grid)
        if min(height, width) < LEAST_SIDE:
            return None
        others = [axis for axis in range(len(shape)) if axis not in grid]
        axes = (0, *(axis + 1 for axis in (*others, *grid)))
        return cls(variable.name, axes, (height, width), math.prod(shape[each] for each in others))

    def values(self, batch: Batch, device: torch.device) -> torch.Tensor:
        """Return the field of all samples, (samples, channels, *grid), in single precision."""
        tensor = as_tensor(batch.arrays[self.name]).to(device).permute(self.axes)
        return tensor.reshape(tensor.shape[0], -1, *tensor.shape[-2:]).to(torch.float32)


class UNetTraining:
    """Trains a U-Net of its own on every batch, with Adam on the mean squared error.

    Inputs of another grid than the target's are interpolated to it. Where a sample has no field
    that is a target, the model is trained towards the first input. The loss of each batch is
    looked at before the next one is asked for, as many training loops do: so the batch is free by
    then, and the loop waits for no batch while a device still computes.

    Parameters
    ----------
    spec : SampleSpec
        What a sample is.
    batch_size : int
        Samples of the largest batch.
    batches_per_step : int
        Batches whose gradients a step of the optimiser takes.
    seed : int
        Of the model's first weights; the process's own random numbers stay as they are.
    clock : DeviceClock or None
        Times what the device does; None of the CPU.

    Raises
    ------
    OptionError
        If a sample has no field of two dimensions, or the device has not the memory.
    """

    def __init__(
        self,
        spec: SampleSpec,
        batch_size: int,
        *,
        batches_per_step: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
        clock: DeviceClock | None = None,
    ) -> None:
        self._device, self._clock = torch.device(device), clock
        self._lane = None if clock is None else DeviceLane(clock)
        self._inputs, self._targets = trained_fields(spec)
        self._grid = self._targets[0].grid
        self._filters = TINY_FILTERS if math.prod(self._grid) <= TINY_POINTS else FILTERS
        self._batches_per_step = batches_per_step
        self._n_batches = self._n_not_finite = 0
        self._first_loss = self._loss = math.nan
        self._last_losses: deque[float] = deque(maxlen=FINAL_BATCHES)
        n_channels, n_targets = (
            sum(each.n_channels for each in fields) for fields in (self._inputs, self._targets)
        )
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self._model = UNet(n_channels, self._filters, n_targets).to(device)
            self._optimiser = torch.optim.Adam(self._model.parameters(), lr=LEARNING_RATE)
            warm = torch.zeros((batch_size, n_channels, *self._grid), device=device)
            for _ in range(2):  # libraries choose their kernels before anything is timed
                self._model(warm).mean().backward()
            self._optimiser.zero_grad(set_to_none=True)
        except (RuntimeError, ValueError) as error:
            raise self._refused(error) from error

    def run(self, recorder: Recorder, batch: Batch, *, since_ns: int | None = None) -> None:
        """Train on a batch; ``forward`` has the loss in it, ``backward`` the optimiser's step.

        Of a batch of an evaluation no more than the loss is made.

        Raises
        ------
        OptionError
            If the device refuses.
        """
        try:
            with torch.set_grad_enabled(not batch.planned.evaluates):
                self._run(recorder, batch)
        except (RuntimeError, ValueError) as error:
            raise self._refused(error) from error

    def _run(self, recorder: Recorder, batch: Batch) -> None:
        now_ns = recorder.clock.now_ns
        start_ns, marks = now_ns(), [self._mark()]
        targets = [each.values(batch, self._device) for each in self._targets]
        inputs = [self._on_grid(each.values(batch, self._device)) for each in self._inputs]
        target = targets[0] if len(targets) == 1 else torch.cat(targets, dim=1)
        values = inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1)
        loss = functional.mse_loss(self._model(values), target)
        marks += [self._mark(), self._mark()]
        if batch.planned.evaluates:
            loss.item()
        middle_ns = now_ns()
        steps: list[tuple[Kind, int, int, Any, Any]] = [
            (Kind.FORWARD, start_ns, middle_ns, *marks[:2])
        ]
        if not batch.planned.evaluates:
            (loss / self._batches_per_step).backward()
            self._n_batches += 1
            if self._n_batches % self._batches_per_step == 0:
                self._optimiser.step()
                self._optimiser.zero_grad(set_to_none=True)
            marks.append(self._mark())
            self._note(loss.item())
            steps.append((Kind.BACKWARD, middle_ns, now_ns(), *marks[2:]))
        number, epoch = batch.planned.batch, batch.planned.epoch
        for kind, begun_ns, ended_ns, first, last in steps:
            recorder.emit(kind, begun_ns, ended_ns, batch=number, epoch=epoch)
            if self._lane is not None and first is not None and last is not None:
                region = DeviceRegion(kind, "", first, last, begun_ns, number, epoch)
                if self._lane.add(recorder, region) >= REGIONS_PER_FLUSH:
                    self._lane.write()

    def _mark(self) -> Any:
        return None if self._lane is None else self._lane.mark()

    def _on_grid(self, values: torch.Tensor) -> torch.Tensor:
        if values.shape[-2:] == self._grid:
            return values
        return functional.interpolate(values, size=self._grid)

    def _note(self, loss: float) -> None:
        if self._n_batches == 1:
            self._first_loss = loss
        self._loss = loss
        self._last_losses.append(loss)
        self._n_not_finite += not math.isfinite(loss)

    def finish(self) -> Mapping[str, Any]:
        """Write what the device has done; return what ``run.json`` says of the training."""
        last = self._last_losses
        final = math.fsum(last) / len(last) if last else math.nan
        if self._lane is not None:
            self._lane.write(last=True)
        return {
            "model": "U-Net",
            "filters": list(self._filters),
            "n_parameters": sum(values.numel() for values in self._model.parameters()),
            "grid": list(self._grid),
            "inputs": [each.name for each in self._inputs],
            "targets": [each.name for each in self._targets],
            "device": "cpu" if self._clock is None else self._clock.name,
            "threads": torch.get_num_threads() if self._clock is None else None,
            "n_batches": self._n_batches,
            "first_loss": self._first_loss if math.isfinite(self._first_loss) else None,
            "loss": self._loss if math.isfinite(self._loss) else None,
            "final_loss": final if math.isfinite(final) else None,
            "n_final": len(last),
            "n_not_finite": self._n_not_finite,
        }

    def _refused(self, error: Exception) -> OptionError:
        why = str(error).partition("\n")[0]
        return OptionError(
            f"--compute unet on {self._device}: {why}; where memory is short, a smaller "
            "--batch-size takes less"
        )


def trained_fields(spec: SampleSpec) -> tuple[Sequence[TrainedField], Sequence[TrainedField]]:
    """Return the inputs and the targets; these are of one grid.

    Raises
    ------
    OptionError
        If no input is a field.
    """
    found: dict[str, list[TrainedField]] = {"input": [], "target": []}
    for variable in spec:
        field = TrainedField.of(variable)
        if field is not None:
            found[variable.role].append(field)
    inputs, targets = found["input"], found["target"]
    if not inputs:
        shapes = ", ".join(
            f"{each.name} {' x '.join(map(str, each.shape)) or 'one number'}"
            for each in spec
            if each.role == "input"
        )
        raise OptionError(NO_FIELD.format(what="input of a sample", shapes=shapes or "none there"))
    targets = targets or inputs[:1]
    return inputs, [each for each in targets if each.grid == targets[0].grid]
