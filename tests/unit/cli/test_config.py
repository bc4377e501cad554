"""Config files are scripted, asked for, written with defaults, and brought up to date."""

import builtins
import json

import pytest
import yaml

from drivetrain.cli.main import main
from drivetrain.config import files
from drivetrain.config.options import BY_NAME


@pytest.fixture
def path(tmp_path):
    return tmp_path / "c.yaml"


def _config(path, *argv):
    return main(["config", *argv, "--config_file", str(path)])


def test_set_writes_keys_where_they_belong(path):
    assignments = [
        "mixed_precision=bf16",
        "fsdp_config.fsdp_version=2",
        "fsdp_offload_params=true",
        "max_restarts=3",
        "num_processes=4",
    ]
    assert _config(path, *[part for one in assignments for part in ("--set", one)]) == 0
    document = yaml.safe_load(path.read_text())
    assert document["mixed_precision"] == "bf16" and document["num_processes"] == 4
    assert document["fsdp_config"] == {"fsdp_version": "2", "fsdp_offload_params": True}
    assert document["drivetrain"] == {"max_restarts": 3}


def test_set_keeps_the_rest_and_removes_with_none(path):
    path.write_text("num_processes: 4\nfsdp_config: {offload_params: true}\n")
    assert _config(path, "--set", "debug=yes", "--set", "fsdp_offload_params=none") == 0
    assert yaml.safe_load(path.read_text()) == {"num_processes": 4, "debug": True}


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("mixed_precison=bf16", "no key 'mixed_precison'. Did you mean 'mixed_precision'?"),
        ("mixed_precision", "takes KEY=VALUE"),
        ("mixed_precision=bf17", "choose one of"),
        ("use_fsdp=true", "chosen by the key distributed_type"),
        ("dry_run=true", "given on the command line"),
    ],
)
def test_wrong_assignments(path, capsys, assignment, said):
    assert _config(path, "--set", assignment) == 1
    assert said in capsys.readouterr().err and not path.exists()


@pytest.mark.parametrize("one", [one for one in BY_NAME.values() if one.key], ids=lambda one: one.name)
def test_every_option_can_be_set_and_read(path, one):
    text = {"flag": "true", "bool": "false", "int": "3", "float": "0.5", "str": "x", "list": "a,b", "bools": "1,0,1"}
    word = one.choices[-1] if one.choices else text[one.kind]
    if one.group.endswith("SageMaker"):
        assert _config(path, "--set", "compute_environment=AMAZON_SAGEMAKER", "--set", f"{one.name}={word}") == 0
    else:
        assert _config(path, "--set", f"{one.name}={word}") == 0
    assert files.read_file(str(path))[one.name].value == one.from_text(word, "x")


def test_default_file_and_profile(capsys):
    assert main(["config", "default", "--mixed_precision", "bf16"]) == 0
    path = files.default_config_file()
    assert path in capsys.readouterr().out
    layer = files.read_file(path)
    assert (layer["mixed_precision"].value, layer["num_processes"].value, layer["cpu"].value) == ("bf16", 1, True)
    assert main(["config", "default"]) == 0  # exists: left alone, no error
    assert "left as it is" in capsys.readouterr().out
    assert files.read_file(path)["mixed_precision"].value == "bf16"
    assert main(["config", "--profile", "big", "--set", "num_processes=8"]) == 0
    assert files.read_file(files.profile_file("big"))["num_processes"].value == 8


def test_update_rewrites_an_old_file(tmp_path, capsys):
    path = tmp_path / "old.yaml"
    path.write_text(
        json.dumps({"distributed_type": "TPU", "fp16": True, "dynamo_backend": "EAGER", "fp8_config": {"margin": 2}})
    )
    assert main(["config", "update", "--config_file", str(path)]) == 0
    assert yaml.safe_load(path.read_text()) == {
        "distributed_type": "XLA",
        "mixed_precision": "fp16",
        "dynamo_config": {"dynamo_backend": "eager"},
        "fp8_config": {"margin": 2},
    }
    assert main(["config", "update", "--config_file", str(tmp_path / "nowhere.yaml")]) == 1
    assert "nowhere.yaml" in capsys.readouterr().err


class Person:
    """Answers questions by the option's name; presses Enter at all others. `asked` lists the names."""

    def __init__(self, **answers):
        self.answers = {name: list(words) if isinstance(words, list) else [words] for name, words in answers.items()}
        self.asked = []

    def __call__(self, prompt):
        name = prompt.rstrip(": ").split(" [")[0].split()[-1]
        self.asked.append(name)
        words = self.answers.get(name)
        return words.pop(0) if words else ""


def _asked(monkeypatch, path, **answers):
    person = Person(**answers)
    monkeypatch.setattr(builtins, "input", person)
    assert _config(path) == 0
    return person.asked, {name: one.value for name, one in files.read_file(str(path)).items()}


def test_enter_keeps_every_default(monkeypatch, path):
    asked, found = _asked(monkeypatch, path)
    assert asked == [
        "distributed_type",
        "cpu",
        "num_processes",
        "mixed_precision",
        "gradient_accumulation_steps",
        "dynamo_backend",
        "debug",
    ]
    assert (found["distributed_type"], found["num_processes"], found["mixed_precision"]) == ("NO", 1, "no")


def test_questions_follow_the_answers(monkeypatch, path):
    asked, found = _asked(
        monkeypatch,
        path,
        distributed_type="FSDP",
        num_machines="2",
        machine_rank="1",
        main_process_ip="10.0.0.1",
        main_process_port="1234",
        num_processes="4",
        mixed_precision=["bf17", "bf16"],
        fsdp_version="2",
        parallelism_config_tp_size="2",
    )
    assert {"machine_rank", "fsdp_offload_params", "parallelism_config_tp_size"} <= set(asked)
    assert "zero_stage" not in asked and asked.count("mixed_precision") == 2
    expected = {
        "use_fsdp": True,
        "num_machines": 2,
        "machine_rank": 1,
        "main_process_ip": "10.0.0.1",
        "fsdp_version": "2",
        "main_process_port": 1234,
        "num_processes": 4,
        "mixed_precision": "bf16",
        "parallelism_config_tp_size": 2,
    }
    assert {name: found[name] for name in expected} == expected


def test_the_old_file_gives_the_defaults(monkeypatch, path):
    path.write_text("distributed_type: MULTI_CPU\nnum_processes: 3\nmixed_precision: bf16\n")
    _, found = _asked(monkeypatch, path, num_processes="5")
    assert (found["distributed_type"], found["num_processes"], found["mixed_precision"]) == ("MULTI_CPU", 5, "bf16")


def test_input_that_ends_is_told(monkeypatch, path, capsys):
    def nobody(prompt):
        raise EOFError

    monkeypatch.setattr(builtins, "input", nobody)
    assert _config(path) == 1
    assert "config --set KEY=VALUE" in capsys.readouterr().err and not path.exists()
