"""What all three encodings promise."""

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.codec import SUBPROTOCOLS, Codec, choose_subprotocol, make_codec
from seedance_wire.envelope import CodedDelta
from seedance_wire.errors import CloseCode, DecodeError, LocalProtocolError
from seedance_wire.messages import Bye, Delta, Message
from tests.strategies import chunked, client_messages, coded_deltas, envelopes, server_messages

codecs = pytest.mark.parametrize("codec", [make_codec(name) for name in SUBPROTOCOLS], ids=SUBPROTOCOLS)


@codecs
@given(message=client_messages())
def test_codec_gives_back_every_client_message(codec: Codec, message: Message) -> None:
    """Encoding and decoding any message of a client's changes nothing in it."""
    assert tuple(codec.decode_client(codec.encode((message,)))) == (message,)


@codecs
@given(messages=envelopes(server_messages))
def test_codec_gives_back_every_server_envelope(codec: Codec, messages: tuple[Message, ...]) -> None:
    """Encoding and decoding any message of a server's, or a batch of frames, changes nothing in it."""
    assert tuple(codec.decode_server(codec.encode(messages))) == messages


@codecs
@given(payload=st.binary(max_size=200) | st.text(max_size=200))
def test_codec_raises_only_decode_error_for_anything(codec: Codec, payload: bytes | str) -> None:
    """Whatever a peer sends is a message or a DecodeError."""
    for decode in (codec.decode_client, codec.decode_server):
        try:
            decode(payload)
        except DecodeError as error:
            assert error.close_code in {CloseCode.BAD_MESSAGE, CloseCode.UNSUPPORTED_DATA}  # noqa: PT017


@codecs
@given(message=client_messages(), data=st.data())
def test_codec_raises_only_decode_error_for_every_truncation(
    codec: Codec, message: Message, data: st.DataObject
) -> None:
    """A message cut anywhere is a DecodeError, or, as protobuf has it, another message."""
    payload = codec.encode((message,))
    for end in range(len(payload)):
        try:
            decoded: Sequence[object] = codec.decode_client(payload[:end])
        except DecodeError:
            continue
        assert codec.subprotocol == "seedance.v1"
        assert len(decoded) == 1


@codecs
@given(messages=envelopes(server_messages))
def test_codec_raises_only_decode_error_for_every_truncation_of_a_servers(
    codec: Codec, messages: tuple[Message, ...]
) -> None:
    """The same for envelopes of a server's; cut raw text is fewer whole blocks at most."""
    payload = codec.encode(messages)
    for end in range(len(payload)):
        try:
            decoded = codec.decode_server(payload[:end])
        except DecodeError:
            continue
        assert codec.subprotocol != "seedance.v1.json"
        if codec.subprotocol == "seedance.v1.raw":
            assert tuple(decoded) == messages[: len(decoded)]


@codecs
@given(message=client_messages(), data=st.data())
def test_codec_raises_only_decode_error_when_bytes_are_swapped(
    codec: Codec, message: Message, data: st.DataObject
) -> None:
    """Pieces of a good message in any other order are a message or a DecodeError."""
    payload = codec.encode((message,))
    whole = payload if isinstance(payload, bytes) else payload.encode()
    pieces = data.draw(chunked(whole).flatmap(st.permutations))
    mixed = b"".join(pieces)
    with contextlib.suppress(DecodeError):
        codec.decode_client(mixed if isinstance(payload, bytes) else mixed.decode(errors="replace"))


@codecs
def test_codec_refuses_the_other_kind_of_websocket_message(codec: Codec) -> None:
    """Text where binary was agreed on, or the reverse, closes with 1003."""
    payload: bytes | str = "{}" if isinstance(codec.encode((Bye(),)), bytes) else b"{}"
    for decode in (codec.decode_client, codec.decode_server):
        with pytest.raises(DecodeError) as caught:
            decode(payload)
        assert caught.value.close_code is CloseCode.UNSUPPORTED_DATA


@codecs
@given(frame=coded_deltas)
def test_codec_carries_differences_only_where_it_says_so(codec: Codec, frame: CodedDelta) -> None:
    """Text encodings show text; protobuf gives the differences back as they were."""
    if codec.carries_differences:
        assert tuple(codec.decode_server(codec.encode((frame, frame)))) == (frame, frame)
    else:
        with pytest.raises(LocalProtocolError):
            codec.encode((frame,))


@codecs
@pytest.mark.parametrize(
    "messages",
    [(), (Bye(), Bye()), (Bye(), Delta(stream_id=1, id=1, epoch=1, offset=0, text=""))],
    ids=["none", "two-requests", "mixed"],
)
def test_codec_refuses_what_may_not_share_an_envelope(codec: Codec, messages: Sequence[Message]) -> None:
    """Only frames travel together, and never nothing."""
    with pytest.raises(LocalProtocolError):
        codec.encode(messages)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["seedance.v1.raw", "seedance.v1.json", "seedance.v1"], "seedance.v1"),
        (["x", "seedance.v1.raw", "seedance.v1.json"], "seedance.v1.json"),
        (["seedance.v1.raw"], "seedance.v1.raw"),
        (["seedance.v2", "SEEDANCE.V1", ""], None),
        ([], None),
        (["seedance.v2"], None),
        (["seedance.v2", "seedance.v1"], "seedance.v1"),
    ],
)
def test_choose_subprotocol_prefers_by_the_servers_order(offered: list[str], chosen: str | None) -> None:
    """The server's preference wins, and names are exact."""
    assert choose_subprotocol(offered) == chosen


def test_make_codec_refuses_a_name_that_was_never_offered() -> None:
    """Agreeing on an unknown subprotocol is our own bug."""
    with pytest.raises(LocalProtocolError, match=r"seedance\.v2"):
        make_codec("seedance.v2")
