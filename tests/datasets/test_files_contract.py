import netCDF4
import numpy as np
import pytest

from iobench.datasets.user_files import user_files
from iobench.testing import DatasetTests


class TestUserGrib(DatasetTests):
    @pytest.fixture
    def files(self, real):
        return [real("era5/era5-levels-members.grib")]

    @pytest.fixture
    def dataset(self, files):
        return user_files(files, sample_dim="time")


class TestUserNetcdf(DatasetTests):
    @pytest.fixture
    def files(self, yr_files):
        return yr_files

    @pytest.fixture
    def dataset(self, files):
        return user_files(files, sample_dim="leadtime")


class TestUserNetcdfThroughTheLibrary(DatasetTests):
    @pytest.fixture
    def files(self, tmp_path):
        path = tmp_path / "szip.nc"
        with netCDF4.Dataset(path, "w") as ds:
            ds.createDimension("time", 3)
            szip = {"compression": "szip", "szip_pixels_per_block": 2}
            ds.createVariable("v", "f4", ("time",), **szip)[:] = np.arange(3)
        return [path]

    @pytest.fixture
    def dataset(self, files):
        return user_files(files, sample_dim="time")
