"""What ``iobench convert`` and ``iobench verify`` do, without the command line."""

from iobench.conversion.checking import Verification, VerifyRequest, verify
from iobench.conversion.planning import (
    ConversionForecast,
    KnownSource,
    KnownTarget,
    MeasuredProbe,
    plan,
)
from iobench.conversion.request import ConvertRequest, parse_patch
from iobench.conversion.running import ConversionOutcome, forecast, run
from iobench.sizes import parse_nbytes

__all__ = [
    "ConversionForecast",
    "ConversionOutcome",
    "ConvertRequest",
    "KnownSource",
    "KnownTarget",
    "MeasuredProbe",
    "Verification",
    "VerifyRequest",
    "forecast",
    "parse_nbytes",
    "parse_patch",
    "plan",
    "run",
    "verify",
]
