"""The script of the double: values that say what they are."""

from __future__ import annotations

from seedance_sdk.script import Answer, Cut, Refusal
from seedance_wire.messages import ErrorCode, FinishReason


def test_answer_with_a_close_code_ends_in_a_cut() -> None:
    """Two ways of writing the same script are the same script."""
    assert Answer("a", close_code=1011) == Answer("a", Cut(1011))
    assert Answer("a").pieces == ("a",)


def test_script_says_what_it_leaves_out() -> None:
    """The shortest script is an answer that stops, a cut without a goodbye, a refusal that is final."""
    assert Answer().finish_reason is FinishReason.STOP
    assert not Answer().endless
    assert Cut().code == 1006
    assert not Refusal(ErrorCode.OVERLOADED).retryable
