"""Options that a dataset cannot have are refused in one line that names those it can."""

from __future__ import annotations

import pytest

from iobench.errors import OptionError
from iobench.registry import find_dataset

WRONG = {
    "yr": (
        ({"dates": "2020-05-22"}, "20200522': expected one of 20200301, 20200302 to 20220228"),
        ({"patch": "9" * 5000}, "expected a whole number from 1, or whole"),
        ({"patch": "0"}, "expected a whole number from 1, or whole"),
        ({"x_range": "1,2"}, "both or none"),
        ({"x_range": "1", "y_range": "1,2"}, "expected start,stop"),
        ({"location": "here/"}, "--data-dir"),
    ),
    "radiation": (
        ({"dates": "20200101"}, "knows dataset, date, timestep"),
        ({"subset": "tier-2"}, "tier-1, 2020"),
        ({"subset": "tier-1", "patch": "0"}, "subset cannot be combined with patch"),
        ({"hr_units": "K s-1", "heating_rate": "false"}, "hr_units needs heating_rate=true"),
    ),
    "radiation-tf": (({"subset": "tier-1", "filenum": "1"}, "cannot be combined with filenum"),),
    "ens10": (
        ({"date": "0102"}, "date '0102': expected one of 0101, 0104 to 1231"),
        ({"date": "2018-01-01"}, "expected one of 0101"),
        ({"dtype": "pl", "target": "none"}, "of dtype pl, expected z500 or t850"),
        ({"target": "z500"}, "of dtype sfc, expected era5 or none"),
    ),
    "downscaling": (
        ({"tier": "3"}, "expected 1 or 2"),
        ({"tier": "1", "variant": "x"}, "tier1 knows months, dataset$"),
        ({"tier": "1", "months": "2020-10-01"}, "one of 2016-04, 2016-05 to 2020-09"),
        ({"months": "2018-1"}, "months '2018-1': expected one of 1995-01"),
        ({"dataset": "training_aug"}, "of training, validation, testing$"),
        ({"dataset": "training", "months": "2016-04"}, "give one of them"),
    ),
    "weather-pressure-level": (
        ({"date": "20190101"}, "date '20190101': expected one of 2017-01-01"),
        ({"levels": "model", "sample": "clustering"}, "of pressure levels"),
        ({"crop": "none"}, "knows date, levels, sample"),
    ),
}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [(name, *each) for name, some in WRONG.items() for each in some],
)
def test_wrong_options_are_refused(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        find_dataset(f"maelstrom-{name}", **options)
