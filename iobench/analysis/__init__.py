"""Profiles to figures: pure functions of recorded spans, numpy and the standard library only."""

from iobench.analysis.conversion import FullConversion, predict_full_conversion
from iobench.analysis.diagnosis import Diagnosis, Verdict, diagnose
from iobench.analysis.energy import energy_of
from iobench.analysis.energy_figures import (
    CountedEnergy,
    EnergyFigures,
    EpochEnergy,
    KindEnergy,
    UntoldEnergy,
)
from iobench.analysis.epoch_statistics import (
    BatchStatistics,
    ComputeEpoch,
    EpochFigures,
    StageEpoch,
)
from iobench.analysis.epochs import epoch_figures, epochs_of_rank, step_times
from iobench.analysis.figures import (
    Coincidence,
    ComputeStage,
    DecodedChunkFigures,
    Exposure,
    LoaderExposure,
    LongWaits,
    OtherLoop,
    PartExposure,
    Phase,
    StageExposure,
    WaitStatistics,
)
from iobench.analysis.processes import ProcessWork, StageWork, process_work
from iobench.analysis.rank_figures import JobExposure, MissingRank, RankExposure
from iobench.analysis.rank_steps import RankSteps
from iobench.analysis.ranks import compare_ranks, missing_ranks
from iobench.analysis.samples_compared import (
    FirstDifference,
    SamplesComparison,
    SamplesVerdict,
    compare_samples,
)
from iobench.analysis.samples_seen import EpochSamples, SamplesSeen, samples_seen
from iobench.analysis.storage.placing import place_segments
from iobench.analysis.storage.storage_figures import (
    AccessFigures,
    ByteGap,
    ByteRow,
    Placement,
    ProcessPlacement,
    ProcessStorage,
    ReadCost,
    SanityLine,
    StageStorage,
    StorageFigures,
    TraceCoverage,
)
from iobench.analysis.storage.view import storage_figures, storage_of_rank
from iobench.analysis.storage.wall_clock import monotonic_of_wall
from iobench.analysis.utilisation import Utilisation, mean_utilisation, utilisation, utilisation_of
from iobench.analysis.waits import wait_statistics
from iobench.analysis.windows import exposed_share_of_spans, exposure, measure_rank

__all__ = [
    "AccessFigures",
    "BatchStatistics",
    "ByteGap",
    "ByteRow",
    "Coincidence",
    "ComputeEpoch",
    "ComputeStage",
    "CountedEnergy",
    "DecodedChunkFigures",
    "Diagnosis",
    "EnergyFigures",
    "EpochEnergy",
    "EpochFigures",
    "EpochSamples",
    "Exposure",
    "FirstDifference",
    "FullConversion",
    "JobExposure",
    "KindEnergy",
    "LoaderExposure",
    "LongWaits",
    "MissingRank",
    "OtherLoop",
    "PartExposure",
    "Phase",
    "Placement",
    "ProcessPlacement",
    "ProcessStorage",
    "ProcessWork",
    "RankExposure",
    "RankSteps",
    "ReadCost",
    "SamplesComparison",
    "SamplesSeen",
    "SamplesVerdict",
    "SanityLine",
    "StageEpoch",
    "StageExposure",
    "StageStorage",
    "StageWork",
    "StorageFigures",
    "TraceCoverage",
    "UntoldEnergy",
    "Utilisation",
    "Verdict",
    "WaitStatistics",
    "compare_ranks",
    "compare_samples",
    "diagnose",
    "energy_of",
    "epoch_figures",
    "epochs_of_rank",
    "exposed_share_of_spans",
    "exposure",
    "mean_utilisation",
    "measure_rank",
    "missing_ranks",
    "monotonic_of_wall",
    "place_segments",
    "predict_full_conversion",
    "process_work",
    "samples_seen",
    "step_times",
    "storage_figures",
    "storage_of_rank",
    "utilisation",
    "utilisation_of",
    "wait_statistics",
]
