"""The quick reader and argparse agree; wrong command lines end with code 2 and the nearest flag."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.config import flags
from drivetrain.config.options import OPTIONS
from drivetrain.config.resolve import Setting

PROG = "drivetrain launch"


def _values(line):
    return {name: one.value for name, one in line.values.items()}


def test_flags_script_and_its_arguments():
    line = flags.read(["--cpu", "--num_processes", "2", "train.py", "--num_processes", "9", "--", "-x"], PROG)
    assert _values(line) == {"cpu": True, "num_processes": 2}
    assert (line.script, line.script_args) == ("train.py", ["--num_processes", "9", "--", "-x"])


@pytest.mark.parametrize("read", [flags.quick_read, lambda argv: flags.read_with_argparse(argv, PROG)])
def test_the_source_is_the_flag_as_written(read):
    line = read(["--num-processes=2", "--mixed_precision", "bf16", "-m", "x"])
    assert line.values == {
        "num_processes": Setting(2, "--num-processes"),
        "mixed_precision": Setting("bf16", "--mixed_precision"),
        "module": Setting(True, "-m"),
    }


def test_a_switch_can_be_switched_off():
    assert _values(flags.read(["--no_cpu", "--no-tpu-cluster", "--same_network", "--no_same_network", "x"], PROG)) == {
        "cpu": False,
        "tpu_use_cluster": False,
        "same_network": False,
    }


def test_repeated_and_short_flags():
    line = flags.read(["--vm", "a,b", "--vm", "c", "-t3", "-qm", "x"], PROG)
    assert _values(line) == {"vm": ["a,b", "c"], "tee": "3", "quiet": True, "module": True}
    assert line.script == "x"


def test_a_script_may_follow_a_double_dash():
    line = flags.read(["--cpu", "--", "-odd.py", "a"], PROG)
    assert (line.script, line.script_args) == ("-odd.py", ["a"])


def test_without_a_script():
    assert flags.read(["--show_config"], PROG).script is None
    assert flags.read([], PROG).script is None


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--num_process", "2", "x"], "unknown flag --num_process. Did you mean '--num_processes'?"),
        (["--num", "2", "x"], "unknown flag --num. Did you mean '--num_processes'?"),  # no abbreviations
        (["--mixed-precison=bf16", "x"], "unknown flag --mixed-precison."),
        (["--mixed_precision", "bf17", "x"], "--mixed_precision is 'bf17'; choose one of no, fp16, bf16, fp8."),
        (["--num_processes", "two", "x"], "--num_processes is 'two', which is no whole number."),
        (["--fsdp_offload_params", "perhaps", "x"], "no truth value"),
        (["--cpu=False", "x"], "ignored explicit argument 'False'"),
        (["--num_processes"], "expected one argument"),
        (["--fsdp_ignored-modules", "a", "x"], "unknown flag"),
    ],
)
def test_wrong_lines(capsys, argv, said):
    with pytest.raises(SystemExit) as caught:
        flags.read(argv, PROG)
    assert caught.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("drivetrain launch: error: ") and said in last


def test_help_shows_the_groups_that_matter(capsys):
    for argv, shown, hidden in (
        (["--help"], ["--mixed_precision", "--grace"], ["--fsdp_version", "--zero_stage", "--machine_rank"]),
        (["--use_fsdp", "--help"], ["--fsdp_version", "FSDP Arguments:"], ["--zero_stage"]),
        (["--multi-gpu", "-h"], ["--machine_rank", "Distributed GPUs:"], ["--fsdp_version"]),
    ):
        with pytest.raises(SystemExit) as caught:
            flags.read(argv, PROG)
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert all(one in text for one in shown) and not any(one in text for one in hidden)


def test_the_parser_takes_a_whole_command_line():
    namespace = flags.build_parser(PROG).parse_args(["--cpu", "x.py", "--num_processes", "3"])
    assert namespace.training_script == "x.py" and namespace.training_script_args == ["--num_processes", "3"]
    assert namespace.cpu == Setting(True, "--cpu") and not hasattr(namespace, "num_processes")


SPELLINGS = [name for one in OPTIONS for name in (*flags.spellings(one), *flags.off_spellings(one))]
WORDS = st.one_of(
    st.sampled_from(SPELLINGS),
    st.sampled_from(
        ["-m", "-q", "-t", "-t3", "--", "-", "", "x.py", "2", "-1", "true", "bf16", "a b", "--nope", "1.5"]
    ),
    st.builds(
        lambda name, value: f"{name}={value}",
        st.sampled_from(SPELLINGS),
        st.sampled_from(["2", "true", "", "x", "bf16"]),
    ),
)
VALUED = st.sampled_from([one for one in OPTIONS if one.flag and one.kind != "flag"])
PAIRS = st.builds(
    lambda one, dashed, text: [flags.spellings(one)[-1 if dashed else 0], one.choices[0] if one.choices else text],
    VALUED,
    st.booleans(),
    st.sampled_from(["1", "0", "true", "x"]),
)
LINES = st.lists(st.one_of(WORDS.map(lambda word: [word]), PAIRS), max_size=5).map(lambda parts: sum(parts, []))


@given(LINES)
def test_quick_reader_and_argparse_agree(argv):
    quick = flags.quick_read(argv)
    if quick is None:
        return
    assert quick == flags.read_with_argparse(argv, PROG)
    if quick.script is not None:  # and with argparse's own idea of where the script begins
        namespace = flags.build_parser(PROG).parse_args(argv)
        assert (namespace.training_script, namespace.training_script_args) == (quick.script, quick.script_args)


@given(st.lists(PAIRS, max_size=4).map(lambda parts: sum(parts, [])))
def test_quick_reader_takes_plain_lines(argv):
    """It would otherwise agree by never answering."""
    right = True
    for flag, text in zip(argv[::2], argv[1::2], strict=True):
        one = next(one for one in OPTIONS if flag in flags.spellings(one))
        right &= not (one.kind in ("int", "float") and not text.isdigit())
        right &= not (one.kind in ("bool", "bools") and text == "x")
    assert (flags.quick_read([*argv, "x.py"]) is not None) == right
