"""Frames as JSON objects."""

import json

import pytest
from hypothesis import given

from seedance_wire.json_fields import Fields
from seedance_wire.json_frames import final_from_json, final_to_json, frame_from_json, frame_to_json
from seedance_wire.messages import Delta, Final, Frame
from seedance_wire.validity import InvalidFieldError
from tests.strategies import finals, frames, json_values


@given(frame=frames)
def test_frame_comes_back_through_text(frame: Frame) -> None:
    """Numbers beyond 53 bits and infinite ones too."""
    assert frame_from_json(Fields(json.loads(json.dumps(frame_to_json(frame))))) == frame


@given(final=finals)
def test_final_comes_back(final: Final) -> None:
    """A stop string is told from a stop token."""
    assert final_from_json(Fields(final_to_json(final))) == final


def test_delta_is_as_short_as_it_can_be() -> None:
    """Most frames are single tokens."""
    frame = Delta(stream_id=1, id=2, epoch=3, offset=4, text="x")
    assert frame_to_json(frame) == {"s": 1, "e": 3, "id": 2, "t": 1, "o": 4, "d": "x"}


@given(value=json_values)
def test_frame_raises_only_for_a_field(value: object) -> None:
    """Any JSON is a frame or names what is wrong."""
    members = {"s": 1, "e": 1, "id": 1, "t": value, "o": 0, "d": value}
    if value == 1 or value == 2 or value == 3:  # noqa: PLR1714 - unhashable values come too
        return
    with pytest.raises(InvalidFieldError):
        frame_from_json(Fields(members))
