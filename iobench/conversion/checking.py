"""What ``iobench verify`` does, without the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from iobench.conversion.convert_request import ConvertRequest
from iobench.conversion.preparing import open_samples
from iobench.cpus import available_cpus
from iobench.datasets.sample_producer import samples_in_order
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import OptionError, StoreError
from iobench.sources.request import SourceRequest
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_against, verify_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.samples import Sample
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store
    from iobench.stores.manifest import Manifest
    from iobench.stores.verification import StoreComparison


class VerifyRequest(SourceRequest, frozen=True, kw_only=True):
    """Which store to check; the source, if named, as for a conversion.

    How the samples were made of it (sample dimension, variables, stage, options) is told by
    the store; ``options`` given here go before. Those that hold a secret are to be given again.
    """

    targets: tuple[Any, ...] = ()
    store: Path = msgspec.field(default_factory=Path)  # its folder
    share: float = 1.0  # how much of the store is compared with the source, from above 0 to 1

    def __post_init__(self) -> None:
        SourceRequest.__post_init__(self)
        if not 0 < self.share <= 1:
            raise OptionError(f"--share {self.share}: expected more than 0 and at most 1")
        if not self.targets and self.share != 1:
            raise OptionError(
                f"--share {self.share}: of what is compared with --against SOURCE; checksums are "
                "always checked, all of them"
            )


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, and found as it should be."""

    path: Path  # the store
    dataset: str
    format: str
    n_samples: int
    n_shards: int
    n_files: int  # of the store
    nbytes: int  # bytes that were read and whose checksums are right
    against: str | None  # the source the samples were compared with
    comparison: StoreComparison | None  # what comparing found: every sample as the source has it
    wall_s: float  # seconds it took
    not_covered: tuple[str, ...] = ()  # what was compared with nothing

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        values = msgspec.structs.asdict(self)
        comparison = None if self.comparison is None else self.comparison.to_dict()
        return {**values, "path": str(self.path), "comparison": comparison}


def verify(request: VerifyRequest, screen: Screen) -> Verification:
    """Check every checksum of a store, and every sample against the source if one is named."""
    watch = stopwatch()
    store = open_store(request.store)
    try:
        with screen.progress(f"checking {store.path.name}", in_bytes=True) as move:
            nbytes = verify_store(store, workers=available_cpus(), progress=move)
        comparison = _compare(store, request, screen) if request.targets else None
        manifest = store.manifest
        return Verification(
            path=store.path,
            dataset=manifest.dataset,
            format=manifest.format,
            n_samples=len(store),
            n_shards=len(manifest.shards),
            n_files=len(manifest.files),
            nbytes=nbytes,
            against=" ".join(map(str, request.targets)) or None,
            comparison=comparison,
            wall_s=watch(),
            not_covered=_not_compared(comparison),
        )
    finally:
        store.close()


def _not_compared(comparison: StoreComparison | None) -> tuple[str, ...]:
    if comparison is None:
        return ("whether samples are as their source has them (--against SOURCE)",)
    left = comparison.n_samples - comparison.n_compared
    return (f"whether {left} samples are as their source has them (--share 1)",) if left else ()


def _compare(store: Store, request: VerifyRequest, screen: Screen) -> StoreComparison:
    """Return what comparing found; raise StoreError where a sample is another now."""
    again = conversion_of(store.manifest, request)
    source, dataset, index = open_samples(again, screen)

    def make(numbers: Sequence[int]) -> Iterator[Sample]:
        return samples_in_order(dataset, index, numbers, workers=again.n_workers)

    with screen.progress(f"comparing with {dataset.name}") as move:
        result = verify_against(
            store,
            index,
            make,
            files=source.files,
            share=request.share,
            workers=again.n_workers,
            progress=move,
        )
    if not result.same:
        files = "" if result.files.same else f"; {result.files}"
        raise StoreError(f"{store.path}: not as {dataset.name} has it: {result}{files}")
    if not result.files.same:
        screen.note(f"{result.files}; the samples are equal nevertheless")
    return result


def conversion_of(manifest: Manifest, request: VerifyRequest) -> ConvertRequest:
    """Return the request that a store was made by, of the source named now.

    Stores that profiles made as probes tell less; what a dataset needs is then given by options.
    """
    said = manifest.provenance.get("request", {})
    try:
        _check_masked(request, list(map(str, said.get("masked", ()))))
        return ConvertRequest(
            targets=request.targets,
            to=manifest.format,
            out=request.store,
            options={**_texts(said.get("options", {})), **request.options},
            sample_dim=said.get("sample_dim", manifest.provenance.get("sample_dim")),
            variables=tuple(map(str, said.get("variables", ()))),
            target_variables=tuple(map(str, said.get("target_variables", ()))),
            stage=said.get("stage", "preprocessed"),
            tiny=request.tiny or bool(said.get("tiny", False)),
            scale=said.get("scale") if request.scale is None else request.scale,
            seed=int(said.get("seed", 0)) or request.seed,
            data_dir=request.data_dir,
            files=request.files,
            store_dir=request.store_dir,
        )
    except OptionError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(
            f"{request.store}: its manifest does not say how ({error}); convert to a new folder"
        ) from error


def _check_masked(request: VerifyRequest, masked: Sequence[str]) -> None:
    missing = [name for name in masked if name not in request.options]
    if missing:
        again = " ".join(f"--option {name}=..." for name in missing)
        raise OptionError(
            f"{request.store}: its manifest does not hold the secret in {', '.join(missing)}; give "
            f"{again} again, as for the conversion"
        )


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}
