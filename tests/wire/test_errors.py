"""The error tree and the close codes."""

import pytest

from seedance_wire.errors import (
    CloseCode,
    DecodeError,
    LocalProtocolError,
    MessageTooLargeError,
    RemoteProtocolError,
    WireError,
)


def test_errors_say_whose_fault_it_is() -> None:
    """Local and remote faults are never caught by the same clause, except as WireError."""
    assert issubclass(DecodeError, RemoteProtocolError)
    assert issubclass(MessageTooLargeError, LocalProtocolError)
    assert issubclass(RemoteProtocolError, WireError)
    assert issubclass(LocalProtocolError, WireError)
    assert not issubclass(RemoteProtocolError, LocalProtocolError)


def test_remote_error_carries_the_close_code() -> None:
    """Whoever catches it knows how to close."""
    assert RemoteProtocolError("no").close_code is CloseCode.BAD_MESSAGE
    assert DecodeError("no", CloseCode.INVALID_DATA).close_code is CloseCode.INVALID_DATA


def test_message_too_large_carries_both_numbers() -> None:
    """A caller can say how much is too much."""
    error = MessageTooLargeError(11, 10)
    assert (error.size_bytes, error.limit_bytes) == (11, 10)
    assert "11" in str(error)


@pytest.mark.parametrize("code", CloseCode)
def test_close_code_is_one_that_a_websocket_may_carry(code: CloseCode) -> None:
    """RFC 6455 section 7.4: 1000-1015 are the protocol's own, 4000-4999 are for private use."""
    assert 1000 <= code <= 1015 or 4000 <= code <= 4999
    assert code != 1004
