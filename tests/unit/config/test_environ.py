"""Rank variables of each launcher become one place; raw variables are set and restored."""

import os

import pytest

from drivetrain.config import environ
from drivetrain.core.errors import ConfigError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "1234",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
INTEL_MPI = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "4",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_JOB_ID": "1234567",
}


def _place(variables):
    one = environ.process_env(variables)
    return one.rank, one.world_size, one.local_rank, one.local_world_size, one.node_rank, one.num_nodes


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (TORCHRUN, (5, 8, 1, 4, 1, 2)),
        (OPEN_MPI, (3, 4, 1, 2, 1, 2)),
        (MVAPICH, (1, 2, 1, 2, 0, 1)),
        (INTEL_MPI, (2, 4, 0, 2, 1, 2)),
        (SLURM, (4, 5, 0, 1, 2, 3)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 0, 1, 1, 2)),  # one process a host
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (1, 2, 1, 2, 0, 1)),
        ({**TORCHRUN, **SLURM}, (5, 8, 1, 4, 1, 2)),  # torchrun inside a Slurm step
    ],
    ids=["torchrun", "openmpi", "mvapich", "intel", "slurm", "bare", "no-local-size", "torchrun-in-slurm"],
)
def test_place_of_a_rank(variables, place):
    assert _place(variables) == place
    assert environ.process_env(variables).launched


def test_without_a_launcher_this_is_the_only_process():
    one = environ.process_env({"WORLD_SIZE": "4", "MASTER_ADDR": "somewhere", "MASTER_PORT": "7"})
    assert (one.rank, one.world_size, one.launched) == (0, 1, False)
    assert (one.master_addr, one.master_port) == ("somewhere", 7)


def test_a_slurm_batch_script_is_not_a_rank():
    assert not environ.process_env({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}).launched


@pytest.mark.parametrize(
    ("variables", "address", "port"),
    [
        (TORCHRUN, "10.0.0.1", 1234),
        (MVAPICH, "127.0.0.1", environ.DEFAULT_PORT),
        (OPEN_MPI, None, environ.DEFAULT_PORT),  # several hosts, and nobody says where rank 0 is
        (SLURM, "gpu03", 24567),
        ({**SLURM, "SLURM_STEP_NODELIST": "a1,b[2-3]", "MASTER_PORT": "9"}, "a1", 9),
        ({**SLURM, "SLURM_STEP_NODELIST": "gpu[7,9]-x"}, "gpu7-x", 24567),
    ],
)
def test_where_the_ranks_meet(variables, address, port):
    one = environ.process_env(variables)
    assert (one.master_addr, one.master_port) == (address, port)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 does not fit into WORLD_SIZE=2"),
        ({"RANK": "1"}, "does not fit"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'"),
        ({"PMI_RANK": "0", "PMI_SIZE": "many"}, "PMI_SIZE is 'many'"),
    ],
)
def test_wrong_rank_variables_are_named(variables, said):
    with pytest.raises(ConfigError, match=said):
        environ.process_env(variables)


@pytest.mark.parametrize("word", ["1", "true", "True", "YES", "on", "t", "y", " true "])
def test_true_words(word):
    assert environ.parse_flag(word, "X") is True


@pytest.mark.parametrize("word", ["0", "false", "False", "NO", "off", "f", "n"])
def test_false_words(word):
    assert environ.parse_flag(word, "X") is False


@pytest.mark.parametrize("word", ["", "maybe", "2", "“true”"])
def test_other_words_are_errors_that_name_the_source(word):
    with pytest.raises(ConfigError, match="FSDP_X is"):
        environ.parse_flag(word, "FSDP_X")


def test_patched_restores_also_after_an_error(monkeypatch):
    monkeypatch.setenv("DT_A", "old")
    monkeypatch.delenv("DT_B", raising=False)
    with pytest.raises(KeyError), environ.patched(DT_A=None, DT_B="new"):
        assert environ.read("DT_A") is None and environ.read("DT_B") == "new"
        raise KeyError
    assert os.environ["DT_A"] == "old" and "DT_B" not in os.environ


def test_write_sets_and_removes(monkeypatch):
    monkeypatch.setenv("DT_A", "old")
    environ.write({"DT_A": None, "DT_B": "x"})
    assert "DT_A" not in os.environ and environ.snapshot()["DT_B"] == "x"
