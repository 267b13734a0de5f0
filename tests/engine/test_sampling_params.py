"""Sampling parameters refuse what the sampler must never see."""

import math
import pickle

import pytest

from seedance_server.engine.errors import InvalidParameter
from seedance_server.engine.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_STOP_CHARS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    SamplingParams,
)

NAN, INF = math.nan, math.inf

REFUSED = [
    *[
        ("temperature", value)
        for value in (NAN, INF, -INF, -1, -1e-30, 1e30, 100.1, True, "1", None, 10**400)
    ],
    *[("top_p", value) for value in (NAN, 0, 0.0, -0.0, -1, 1.0000001, INF, True)],
    *[("top_k", value) for value in (-2, 2**31, 10**5000, 1.0, NAN, True, None)],
    *[("min_p", value) for value in (NAN, -0.1, 1.1, INF, False)],
    *[("seed", value) for value in (2**63, -(2**63) - 1, 1.5, True, "42")],
    *[("stop", value) for value in ("END", ["a", ""], ["a"] * (MAX_STOPS + 1), ["a", 1], 5, None)],
    ("stop", ["a" * (MAX_STOP_CHARS + 1)]),
    *[
        ("stop_token_ids", value)
        for value in ([-1], [2**31], [True], [1.0], 7, [0] * (MAX_STOP_TOKEN_IDS + 1))
    ],
    *[("max_tokens", value) for value in (0, -1, 2**63, True, 1.0, NAN)],
    *[("min_tokens", value) for value in (-1, 2**63, True, None)],
    *[("ignore_eos", value) for value in (1, None, "true")],
    *[("repetition_penalty", value) for value in (0, -1, INF, NAN, 1e-30, 1e30)],
    *[("presence_penalty", value) for value in (INF, -INF, NAN, 2.1, -2.1)],
    *[("frequency_penalty", value) for value in (INF, -INF, NAN, 2.1, -2.1)],
    *[("logit_bias", value) for value in ({1: NAN}, {1: 101}, {1: -INF}, {-1: 0}, {True: 0}, {"1": 0}, [1])],
    ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)),
    *[("logprobs", value) for value in (1, None)],
    *[("top_logprobs", value) for value in (-1, 21, True)],
]

ACCEPTED = [
    *[("temperature", value) for value in (0, 0.0, -0.0, 1e-30, 1, 100)],
    *[("top_p", value) for value in (1e-30, 0.5, 1)],
    *[("top_k", value) for value in (-1, 0, 1, 2**31 - 1)],
    *[("min_p", value) for value in (0, -0.0, 1)],
    *[("seed", value) for value in (None, 0, -1, 2**63 - 1, -(2**63))],
    *[("stop", value) for value in ((), ["a"], ("\n\n", "a" * MAX_STOP_CHARS), ["a"] * MAX_STOPS)],
    *[("max_tokens", value) for value in (None, 1, 10**8, 2**63 - 1)],
    *[("repetition_penalty", value) for value in (0.01, 1.3, 100)],
    *[("presence_penalty", value) for value in (-2, 2)],
    *[("logit_bias", value) for value in ({}, {5: -100, 6: 100.0})],
]


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=lambda value: str(type(value).__name__))
def test_parameter_is_refused_by_its_own_name_when_out_of_range(field, value):
    """The error names the field as the client sent it, and its text is short whatever was sent."""
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("field", "value"), ACCEPTED)
def test_parameter_is_kept_when_in_range(field, value):
    """The edges of each range belong to it."""
    kept = getattr(SamplingParams(**{field: value}), field)
    assert kept == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0, 1e-30, 9e-6])
def test_temperature_means_greedy_when_tiny(temperature):
    """Nothing is ever divided by a temperature that overflows."""
    assert SamplingParams(temperature=temperature).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


def test_min_tokens_is_refused_when_above_max_tokens():
    """Two fields that contradict each other are refused, naming both."""
    with pytest.raises(InvalidParameter, match=r"^min_tokens must be at most max_tokens \(3\), not 4$"):
        SamplingParams(min_tokens=4, max_tokens=3)
    assert SamplingParams(min_tokens=3, max_tokens=3).min_tokens == 3


def test_top_logprobs_is_refused_when_logprobs_is_off():
    """Asking for alternatives without asking for log-probabilities is a mistake of the client's."""
    with pytest.raises(InvalidParameter, match="needs logprobs"):
        SamplingParams(top_logprobs=2)
    assert SamplingParams(logprobs=True, top_logprobs=2).top_logprobs == 2


@pytest.mark.parametrize("field", ["stop_token_ids", "logit_bias"])
def test_token_id_is_refused_when_not_in_the_vocabulary(field):
    """An id beyond the logits would be an index error in the middle of a batch."""
    value = {"stop_token_ids": [9], "logit_bias": {9: 1.0}}[field]
    params = SamplingParams(**{field: value})
    params.validate_for(10)
    with pytest.raises(InvalidParameter, match="from 0 to 8, not 9") as caught:
        params.validate_for(9)
    assert caught.value.field == field


def test_params_stay_as_they_were_when_the_caller_changes_its_mapping():
    """A request can't change after it was validated; it can be hashed and sent to another process."""
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias, stop=["x"])
    bias[1] = math.nan
    assert params.logit_bias == {1: 2.0}
    assert pickle.loads(pickle.dumps(params)) == params
    assert hash(params) == hash(SamplingParams(logit_bias={1: 2.0}, stop=("x",)))


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"json_schema": "{}", "regex": "a"}, "regex"),
        ({"json_schema": "{}", "ignore_eos": True}, "ignore_eos"),
        ({"regex": "a", "min_tokens": 1}, "min_tokens"),
        ({"regex": ""}, "regex"),
        ({"regex": "a" * 65_537}, "regex"),
        ({"json_schema": {}}, "json_schema"),
    ],
)
def test_params_of_a_form_stand_alone(values, field):
    """What says where the answer ends can't be told to go on, nor two things at once."""
    with pytest.raises(InvalidParameter) as refused:
        SamplingParams(**values)
    assert refused.value.field == field
