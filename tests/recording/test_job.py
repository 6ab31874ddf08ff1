import json

import pytest

from iobench.recording.job import JobRank, find_job


def test_a_single_process_is_rank_0_of_1():
    assert find_job({}) == JobRank(0, 1, 0, "", "")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
            (3, 4, 1, "torchrun"),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 0, "")),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8"},
            (2, 8, 0, "mpirun"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, (1, 2, 1, "mpirun")),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"},
            (5, 6, 1, "srun"),
        ),
    ],
)
def test_each_launcher_is_recognised(environment, expected):
    job = find_job(environment)
    assert (job.rank, job.world_size, job.local_rank, job.launcher) == expected
    assert job.token


def test_a_task_of_tf_distribute_counts_after_its_chief():
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    for task, rank in (("chief", 0), ("worker", 2)):
        index = 0 if task == "chief" else 1
        described = json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})
        job = find_job({"TF_CONFIG": described})
        assert (job.rank, job.world_size, job.launcher) == (rank, 3, "tf.distribute")


def test_a_batch_script_of_slurm_is_no_rank():
    assert find_job({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}) == JobRank()


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2"},
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": '{"cluster": {}}'},
        {"TF_CONFIG": "[]"},
    ],
)
def test_what_makes_no_sense_counts_as_not_set(environment):
    assert find_job(environment) == JobRank()


def test_ranks_of_a_job_share_a_token_and_other_jobs_have_another():
    def torchrun(rank, port):
        told = {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
        return find_job({**told, "MASTER_PORT": port}).token

    assert torchrun(0, "29500") == torchrun(1, "29500") != torchrun(0, "29501")


def test_a_token_that_was_told_counts():
    environment = {"RANK": "1", "WORLD_SIZE": "2", "IOBENCH_RUN_TOKEN": "of-this-launch"}
    assert find_job(environment).token == "of-this-launch"
