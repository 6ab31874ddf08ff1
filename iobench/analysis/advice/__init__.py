"""What would help a run, by how much, and at what price."""

from iobench.analysis.advice.advising import WITHHELD_ABOVE, advise
from iobench.analysis.advice.break_even import BreakEven, DeviceBill, StagedRun, bill_of
from iobench.analysis.advice.figures import (
    Advice,
    AdvisedChange,
    Candidate,
    Circumstances,
    Cost,
    Gain,
    LoadingWay,
    RuledOut,
    StoreProbe,
)
from iobench.analysis.advice.levers import AdviceOutcome, Evidence, Lever, Reason

__all__ = [
    "WITHHELD_ABOVE",
    "Advice",
    "AdviceOutcome",
    "AdvisedChange",
    "BreakEven",
    "Candidate",
    "Circumstances",
    "Cost",
    "DeviceBill",
    "Evidence",
    "Gain",
    "Lever",
    "LoadingWay",
    "Reason",
    "RuledOut",
    "StagedRun",
    "StoreProbe",
    "advise",
    "bill_of",
]
