from __future__ import annotations

import pytest

from gateway.cli.conversation import NAMES, ParameterError, Parameters, shown, with_parameter


def test_values_as_they_are_typed() -> None:
    parameters = Parameters()
    for name, text in (("temperature", "0.5"), ("max_tokens", "9"), ("stop", "a 'b c'")):
        parameters = with_parameter(parameters, name, text)
    assert parameters == Parameters(temperature=0.5, max_tokens=9, stop=("a", "b c"))
    rows = {name: value for name, value, meaning in shown(parameters) if meaning}
    assert tuple(rows) == NAMES
    assert (rows["stop"], rows["seed"]) == ("a 'b c'", "")
    assert with_parameter(parameters, "temperature", None).temperature is None


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("temperature", "3", "temperature can't be '3': expected float <= 2.0."),
        ("temperature", "warm", "temperature can't be 'warm': expected float, got str."),
        ("max_tokens", "1.5", "max_tokens can't be '1.5': expected int, got str."),
        ("stop", "'open", "stop can't be \"'open\": no closing quotation."),
        (
            "reasoning_effort",
            "lots",
            "reasoning_effort can't be 'lots': invalid enum value 'lots'.",
        ),
        ("top_k", "-1", "top_k can't be '-1': expected int >= 0."),
        (
            "temprature",
            "1",
            "There is no parameter 'temprature'. Did you mean 'temperature'? /set shows them.",
        ),
        ("n", "2", "There is no parameter 'n'. /set shows them."),
    ],
)
def test_impossible_parameters_are_refused(name: str, text: str, shown: str) -> None:
    with pytest.raises(ParameterError) as refused:
        with_parameter(Parameters(), name, text)
    assert str(refused.value) == shown
