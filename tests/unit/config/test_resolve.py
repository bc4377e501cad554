"""Precedence: code, command line, environment, file, default; on single cases and on all that hypothesis draws."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.config.options import BY_NAME, LAUNCHER_ONLY, OPTIONS
from drivetrain.config.resolve import HANDOVER, Setting, environment_layer, handed_over, in_process, resolve
from drivetrain.core.errors import ConfigError

LAYERS = ("code", "cli", "environ", "file")


@pytest.mark.parametrize("present", range(16))
def test_the_strongest_layer_that_speaks_wins(present):
    words = {"code": "bf16", "cli": "fp16", "environ": "fp8", "file": "bf16"}
    given_layers = {
        name: {"mixed_precision": Setting(words[name], name)}
        for place, name in enumerate(LAYERS)
        if present >> place & 1
    }
    settings = resolve(**given_layers)
    first = next((name for name in LAYERS if name in given_layers), None)
    assert settings["mixed_precision"] == (words[first] if first else "no")
    assert settings.source("mixed_precision") == (first or "default")
    assert settings.explicit("mixed_precision") == (first is not None)


SOME = ["mixed_precision", "num_processes", "cpu", "gradient_accumulation_steps", "fsdp_offload_params", "grace"]
VALUES = {
    "choice": st.sampled_from(["no", "fp16", "bf16"]),
    "int": st.integers(1, 99),
    "flag": st.booleans(),
    "bool": st.booleans(),
    "float": st.floats(0, 1e6, allow_nan=False),
}
LAYER = st.fixed_dictionaries({}, optional={name: VALUES[BY_NAME[name].kind] for name in SOME})


@given(code=LAYER, cli=LAYER, environ=LAYER, file=LAYER)
def test_precedence_holds_for_every_option_apart(code, cli, environ, file):
    settings = resolve(code=code, cli=cli, environ=environ, file=file)
    for name in SOME:
        expected = next((layer[name] for layer in (code, cli, environ, file) if name in layer), BY_NAME[name].default)
        assert settings[name] == expected


def test_none_means_not_given():
    settings = resolve(code={"mixed_precision": None}, file={"mixed_precision": "bf16"})
    assert settings["mixed_precision"] == "bf16"


def test_settings_are_a_read_only_mapping_of_all_options():
    settings = resolve(code={"cpu": True})
    assert list(settings) == [one.name for one in OPTIONS] and len(settings) == len(OPTIONS)
    assert "cpu" in settings and "nothing" not in settings
    assert settings.changed() == {"cpu": True}
    assert settings.with_values({"cpu": False}, "here").source("cpu") == "here"
    assert settings["cpu"] is True
    with pytest.raises(ConfigError, match="no option"):
        settings["nothing"]
    with pytest.raises(TypeError):
        settings["cpu"] = False


def test_a_wrong_argument_is_named():
    with pytest.raises(ConfigError, match=r"mixed_precision \(argument\) is 'bf17'"):
        resolve(code={"mixed_precision": "bf17"})


# --- inside a rank ---------------------------------------------------------------------------------------------------

CONTRACT, OURS = "ACCELERATE_MIXED_PRECISION", "DRIVETRAIN_MIXED_PRECISION"


@pytest.mark.parametrize(
    ("contract_names", "variables", "value", "source"),
    [
        (True, {CONTRACT: "fp16", OURS: "bf16"}, "fp16", CONTRACT),
        (False, {CONTRACT: "fp16", OURS: "bf16"}, "bf16", OURS),
        (False, {CONTRACT: "fp16"}, "no", "default"),
        (True, {HANDOVER: '{"mixed_precision": "bf16"}'}, "bf16", "launcher"),
        (True, {HANDOVER: '{"mixed_precision": "bf16"}', CONTRACT: "no"}, "no", CONTRACT),
        (True, {CONTRACT: ""}, "no", "default"),
    ],
)
def test_in_process(monkeypatch, contract_names, variables, value, source):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    settings = in_process({"mixed_precision": None}, contract_names=contract_names)
    assert (settings["mixed_precision"], settings.source("mixed_precision")) == (value, source)
    assert in_process({"mixed_precision": "fp8"}, contract_names=contract_names)["mixed_precision"] == "fp8"


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "“true”")
    with pytest.raises(ConfigError, match="FSDP_OFFLOAD_PARAMS is '“true”'"):
        in_process({}, contract_names=True)


def test_an_option_with_several_variables():
    layer = environment_layer({"ACCELERATE_FP8_OVERRIDE_DGRAD": "true"})
    assert layer["fp8_override_linear_precision"].value == (False, True, False)
    layer = environment_layer({"DRIVETRAIN_FP8_OVERRIDE_LINEAR_PRECISION": "1,0,1"})
    assert layer["fp8_override_linear_precision"].value == (True, False, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "must hold a JSON object"),
        ('{"nothing": 1}', "no option"),
        ('{"cpu": "x"}', "cpu in"),
    ],
)
def test_a_broken_handover_is_named(text, said):
    with pytest.raises(ConfigError, match=said):
        handed_over(text)


TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(['a"b', "back\\slash", "tab\t", "ümlaut"]))
ANY = {
    "flag": st.booleans(),
    "bool": st.booleans(),
    "int": st.integers(-(2**40), 2**40),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "str": TEXTS,
    "list": st.lists(TEXTS, max_size=3),
    "bools": st.tuples(st.booleans(), st.booleans(), st.booleans()),
}


@given(
    st.fixed_dictionaries(
        {},
        optional={one.name: st.sampled_from(one.choices) if one.kind == "choice" else ANY[one.kind] for one in OPTIONS},
    )
)
def test_what_the_launcher_hands_over_comes_back(values):
    settings = resolve(cli=values)
    assert json.loads(settings.handover()) is not None
    back = {name: one.value for name, one in handed_over(settings.handover()).items()}
    assert back == {name: value for name, value in values.items() if name not in LAUNCHER_ONLY}


def test_secrets_are_not_handed_over():
    assert "AKIA" not in resolve(cli={"aws_access_key_id": "AKIA"}).handover()
