"""Profiles: a run directory read back, the spans of all its processes in one table."""

from iobench.profiles.contents import PROFILE_DTYPE, TRAINING_PROCESS, Folded, Process, Profile
from iobench.profiles.folders import run_paths
from iobench.profiles.reading import RankProfiles, make_profile, open_profile, open_profiles

__all__ = [
    "PROFILE_DTYPE",
    "TRAINING_PROCESS",
    "Folded",
    "Process",
    "Profile",
    "RankProfiles",
    "make_profile",
    "open_profile",
    "open_profiles",
    "run_paths",
]
