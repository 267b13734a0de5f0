"""JSON as text."""

import pytest
from hypothesis import given

from seedance_wire.errors import DecodeError, LocalProtocolError
from seedance_wire.json_codec import JsonCodec, parse_json, write_json
from seedance_wire.json_fields import Json
from seedance_wire.messages import Delta, Flush, Sampling, Submit
from tests.strategies import json_values

CODEC = JsonCodec()


def test_json_codec_writes_text_as_it_is_and_frames_in_one_object() -> None:
    """Readable along the way; one frame is one object, several are a list in one."""
    delta = Delta(stream_id=1, id=1, epoch=1, offset=0, text="é\n")
    flush = Flush(stream_id=1, id=2, epoch=1, offset=3)
    assert CODEC.encode((delta,)) == '{"s":1,"e":1,"id":1,"t":1,"o":0,"d":"é\\n"}'
    both = CODEC.encode((delta, flush))
    assert both.startswith('{"type":"frames","frames":[{"s":1,')
    assert tuple(CODEC.decode_server(both)) == (delta, flush)


@given(json_values)
def test_json_codec_raises_only_decode_error_for_any_json(value: Json) -> None:
    """Well-formed JSON of any shape is a message or a DecodeError."""
    import contextlib
    import json

    for text in (json.dumps(value), json.dumps({"type": "frames", "frames": value})):
        for decode in (CODEC.decode_client, CODEC.decode_server):
            with contextlib.suppress(DecodeError):
                decode(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nul",
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 5000,
        '{"type":"bye","type":"bye"}',
        '{"type":"bye"} x',
        "\ufeff{}",
        '{"type":"frames","frames":[]}',
        '{"type":"frames","frames":[{"type":"goaway","reason":"r"}]}',
        '{"type":"frames","frames":{}}',
        '{"type":"frames","frames":[' + ",".join(["{}"] * 8193) + "]}",
    ],
    ids=lambda text: text[:30],
)
def test_json_codec_refuses_what_is_no_envelope(text: str) -> None:
    """Broken, too deep, too many digits, named twice, too many frames: one error, no crash."""
    with pytest.raises(DecodeError):
        CODEC.decode_server(text)


def test_json_codec_cannot_write_nan() -> None:
    """JSON has no NaN, so a request with one is our bug in this encoding."""
    message = Submit(
        sequence_id=1, idempotency_key=b"k" * 16, prompt="", sampling=Sampling(temperature=float("nan"))
    )
    with pytest.raises(LocalProtocolError):
        CODEC.encode((message,))


def test_write_json_is_one_line_that_parse_json_reads() -> None:
    """Line breaks inside strings are escaped, so a line is a value."""
    text = write_json({"a": "x\ny\u2028"})
    assert "\n" not in text
    assert parse_json(text) == {"a": "x\ny\u2028"}
