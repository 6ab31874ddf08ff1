"""What reports say of a device that batches are copied to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import copies_batches
from iobench.report import units

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import PartExposure
    from iobench.report.run_report import RunReport
    from iobench.runs.run_facts import DeviceFacts, LinkFacts

MUCH_COPYING: Final = 0.05
"""Share of the loop's time in copies to a device, from which the headline says so."""


def copies_line(window: PartExposure) -> str | None:
    """Return what of the loop's time it spends on copies to a device; None where that is little."""
    spent_ns = sum(row.busy_ns for row in window.compute_stages if copies_batches(row.stage))
    if not window.wall_ns or spent_ns < MUCH_COPYING * window.wall_ns:
        return None
    return (
        f"Copying batches to the device (h2d) holds the training loop for "
        f"{units.fraction(spent_ns / window.wall_ns)} of its time, which counts as computing here."
    )


def device_words(device: DeviceFacts) -> str:
    """Return what is known of a device, in words."""
    facts = dict(device.facts)
    memory = facts.pop("memory_nbytes", None)
    words = [device.title, units.nbytes(memory) if isinstance(memory, int) else None]
    words += ["an instance of MIG"] if facts.pop("mig", False) else []
    words += [f"{key} {value}" for key, value in facts.items() if key != "title"]
    return ", ".join(each for each in words if each)


def link_words(link: LinkFacts) -> str:
    """Return what the link to a device was measured to carry, in words."""
    text = f"{units.byte_rate(link.pinned_bytes_per_s)} from pinned memory"
    if link.pageable_bytes_per_s is not None:
        text += f", {units.byte_rate(link.pageable_bytes_per_s)} from other"
    text += f", in copies of {units.nbytes(link.nbytes)}"
    if link.large_bytes_per_s is not None:
        text += f"; {units.byte_rate(link.large_bytes_per_s)} in larger ones of "
        text += units.nbytes(link.large_nbytes)
    return text


def why_no_copies(report: RunReport) -> str:
    """Return why none were measured."""
    facts = report.facts
    watched = {framework for known in report.told for framework in known.moves}
    if facts.is_script and "torch" in watched:
        return (
            "none by Tensor.to, cuda or copy_; tensors created on a device and copies within "
            "compiled code are not seen"
        )
    if facts.is_script and any(
        each.framework == "tensorflow" for text in report.told for each in text.loaders
    ):
        return "not measured: those of TensorFlow's operations, tf.data and Keras are not seen"
    why = "the training loop's own" if facts.is_script else facts.no_device or "no accelerator"
    if facts.device is not None:
        why = f"no array of these batches can be copied to {facts.device.name}"
        if facts.device.copied_by:
            why = (
                f"{facts.device.copied_by} makes them ahead of time and does not report them "
                "separately: they count as opaque loading"
            )
    return f"not measured ({why})"
