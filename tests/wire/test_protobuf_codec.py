"""The protobuf encoding as a whole."""

import os
import subprocess
import sys

import pytest
from google.protobuf.internal import api_implementation

from seedance_wire.errors import DecodeError
from seedance_wire.messages import Hello
from seedance_wire.protobuf_codec import ProtobufCodec

CODEC = ProtobufCodec()


def test_protobuf_codec_runs_on_upb() -> None:
    """Limits on depth and memory, and speed, are upb's."""
    assert api_implementation.Type() == "upb"


@pytest.mark.slow
def test_protobuf_codec_refuses_to_import_without_upb() -> None:
    """A process that has only the pure-Python parser says so at once."""
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    command = [sys.executable, "-c", "import seedance_wire.protobuf_codec"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0
    assert "ImportError: seedance_wire needs protobuf's upb backend" in result.stderr


def test_protobuf_codec_skips_unknown_fields() -> None:
    """A newer peer may say more than we understand."""
    known = CODEC.encode((Hello(sdk_name="a"),))
    unknown_field = b"\xfa\x01\x03abc"  # field 31, three bytes
    longer = known[:1] + bytes([known[1] + len(unknown_field)]) + known[2:] + unknown_field
    assert CODEC.decode_client(longer) == (Hello(sdk_name="a"),)


@pytest.mark.parametrize(
    "payload", [b"", b"\xfa\x01\x03abc", b"\x0a\x7f", b"\xff" * 20, b"\x0a\x02\x12\x80"], ids=bytes.hex
)
def test_protobuf_codec_refuses_what_is_no_envelope(payload: bytes) -> None:
    """Nothing, an unknown message, a cut one, noise and a string that is not UTF-8."""
    for decode in (CODEC.decode_client, CODEC.decode_server):
        with pytest.raises(DecodeError):
            decode(payload)


def test_protobuf_codec_bounds_depth() -> None:
    """Nesting cannot exhaust the stack: unknown groups deeper than upb's limit are refused."""
    with pytest.raises(DecodeError):
        CODEC.decode_client(b"\xfb\x01" * 100_000)
