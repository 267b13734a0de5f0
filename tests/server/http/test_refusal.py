"""Tests of `seedance_server.http.refusal`: every fault has its status, and says whether to try again."""

import json

import pytest

from seedance_server.errors import RequestRefused
from seedance_server.http.refusal import http_refusal, refusal_of_answer, refusal_of_request
from seedance_server.upgrade import HttpAnswer
from seedance_wire.messages import ErrorCode


@pytest.mark.parametrize("code", ErrorCode)
def test_refusal_has_a_status_for_every_fault(code: ErrorCode) -> None:
    """A new word of the protocol needs a line in the table."""
    response = http_refusal(code, "why").response()
    assert 400 <= response.status_code < 600
    error = json.loads(bytes(response.body))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["seedance-error"] == code.value
    assert response.headers["x-should-retry"] == "false"


def test_refusal_says_when_to_come_again() -> None:
    """In whole seconds, never 0; only then should a client send it again by itself."""
    refused = RequestRefused(ErrorCode.RATE_LIMITED, "too much", retry_after_ms=1001)
    response = refusal_of_request(refused).response()
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"
    assert response.headers["x-should-retry"] == "true"


def test_refusal_of_the_door_is_the_same_in_the_api_s_shape() -> None:
    """Status, reason and headers stay."""
    answer = HttpAnswer(503, "loading the model", (("Retry-After", "1"), ("Seedance-Error", "overloaded")))
    response = refusal_of_answer(answer).response()
    assert response.status_code == 503
    assert (response.headers["retry-after"], response.headers["seedance-error"]) == ("1", "overloaded")
    assert json.loads(bytes(response.body))["error"]["message"] == "loading the model"
