"""The table of close codes."""

from seedance_wire.closing import CLOSE_RULES, Advice, Speaker
from seedance_wire.errors import CloseCode


def test_every_close_code_has_its_rule_once_and_in_order() -> None:
    """A code without advice would be one that each client treats its own way."""
    assert list(CLOSE_RULES) == list(CloseCode)


def test_only_what_an_honest_client_may_meet_again_speaks_against_the_server() -> None:
    """What counts as a failure is something to come back after, and is the fault of no client."""
    for rule in CLOSE_RULES.values():
        assert not rule.is_failure or rule.advice is Advice.RESUME


def test_nobody_says_what_never_travels() -> None:
    """RFC 6455 section 7.4.1 reserves them for the reading end."""
    reserved = {code for code, rule in CLOSE_RULES.items() if rule.speaker is Speaker.NOBODY}
    assert reserved == {CloseCode.NO_STATUS, CloseCode.ABNORMAL, CloseCode.TLS_FAILED}
