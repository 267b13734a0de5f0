"""Frames in protobuf."""

import pytest
from hypothesis import given

from seedance_wire import seedance_pb2 as pb
from seedance_wire.envelope import CodedDelta
from seedance_wire.errors import DecodeError
from seedance_wire.messages import ErrorCode, Frame
from seedance_wire.protobuf_frames import ERROR_CODE_TO_PB, error_code_from_pb, frame_from_pb, frame_to_pb
from tests.strategies import coded_deltas, frames


@given(frame=frames | coded_deltas)
def test_frame_comes_back(frame: Frame | CodedDelta) -> None:
    """Field by field, a difference as a difference."""
    assert frame_from_pb(frame_to_pb(frame)) == frame


@pytest.mark.parametrize(
    "fields",
    [
        {"type": 0, "text": "x"},
        {"type": 4},
        {"type": 1},
        {"type": 3, "failure": pb.Failure()},
        {"type": 2, "final": pb.Final(digest=bytes(32))},
        {"type": 2, "final": pb.Final(finish_reason=1, digest=bytes(31))},
        {"type": 2, "id": 0},
    ],
)
def test_frame_that_no_server_sends_is_refused(fields: dict[str, object]) -> None:
    """Unknown values, missing data, a number from zero."""
    numbering = {"stream_id": 1, "id": 1, "epoch": 1}
    with pytest.raises(DecodeError):
        frame_from_pb(pb.Frame(**(numbering | fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ErrorCode)
def test_error_codes_have_numbers(code: ErrorCode) -> None:
    """There and back, and none for what is not known."""
    assert error_code_from_pb(ERROR_CODE_TO_PB[code]) is code
    with pytest.raises(DecodeError):
        error_code_from_pb(99)
