import pytest

from iobench.recording.job import JobRank, find_job


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
            (3, 4, 1),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 0)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8"}, (2, 8, 0)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, (1, 2, 1)),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"},
            (5, 6, 1),
        ),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, (1, 2, 1)),
    ],
)
def test_each_launcher_is_recognised(environment, expected):
    job = find_job(environment)
    assert (job.rank, job.world_size, job.local_rank) == expected
    assert job.token
    assert find_job({**environment, "IOBENCH_RUN_TOKEN": "given"}).token == "given"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},  # a batch script
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2"},
    ],
)
def test_anything_else_is_one_process(environment):
    assert find_job(environment) == JobRank()


def test_ranks_of_a_job_share_a_token_and_other_jobs_have_another():
    def torchrun(rank, port):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
        return find_job({**environment, "MASTER_PORT": port}).token

    assert torchrun(0, "29500") == torchrun(1, "29500") != torchrun(0, "29501")
