"""The raw encoding."""

import pytest

from seedance_wire.errors import DecodeError
from seedance_wire.messages import Accepted, Delta, Durability, Flush, TokenLogprob
from seedance_wire.raw_codec import RawCodec

CODEC = RawCodec()


def test_raw_codec_shows_the_text_as_it_is() -> None:
    """A reader needs to split lines and nothing else."""
    delta = Delta(stream_id=1, id=3, epoch=2, offset=11, text="first\n second\r")
    assert CODEC.encode((delta,)) == "event: delta\nid: 1:2:3:11\ndata: first\ndata:  second\r\n\n"


def test_raw_codec_adds_lines_only_for_what_is_said() -> None:
    """Tokens where they are not one, log probabilities where they were asked for."""
    entry = TokenLogprob(token_id=7, text="a", logprob=float("-inf"))
    delta = Delta(stream_id=1, id=1, epoch=1, offset=0, text="", token_count=2, logprobs=(entry,))
    text = CODEC.encode((delta,))
    assert "\ntokens: 2\nlogprobs: [{" in text
    assert tuple(CODEC.decode_server(text)) == (delta,)


def test_raw_codec_concatenates_frames_and_writes_control_messages_as_json() -> None:
    """A batch is just more blocks; an event's name is its type."""
    flush = Flush(stream_id=1, id=1, epoch=1, offset=0)
    assert CODEC.encode((flush, flush)) == "event: flush\nid: 1:1:1:0\ndata: \n\n" * 2
    accepted = Accepted(sequence_id=1, stream_id=2, durability=Durability.NONE)
    members = '"sequence_id":1,"stream_id":2,"durability":"none","replayed":false'
    text = f'event: accepted\ndata: {{{members},"first_available_id":1,"last_id":0}}\n\n'
    assert CODEC.encode((accepted,)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "event: delta\ndata: a\n\n",
        "event: delta\nid: 1:1:1\ndata: a\n\n",
        "event: delta\nid: 1:1:1:x\ndata: a\n\n",
        "event: delta\nid: 01:1:1:0\ndata: a\n\n",
        "event: delta\nid: 0:1:1:0\ndata: a\n\n",
        "event: delta\nid: 1:1:1:4294967296\ndata: a\n\n",
        "event: delta\nid: 1:1:1:0\ntokens: x\ndata: a\n\n",
        "event: delta\nid: 1:1:1:0\ntokens: -1\ndata: a\n\n",
        "event: delta\nid: 1:1:1:0\nlogprobs: {}\ndata: a\n\n",
        "event: delta\nid: 1:1:1:0\nlogprobs: [\ndata: a\n\n",
        "event: delta\nid: 1:1:1:0\ndata: a\n",
        "event: delta\nid: 1:1:1:0\ndata: a\n\nevent: x",
        "event: other\nid: 1:1:1:0\ndata: a\n\n",
        "event: frames\nid: 1:1:1:0\ndata: []\n\n",
        "event: flush\nid: 1:1:1:0\ndata: {}\n\n",
        "event: flush\nid: 1:1:1:0\ndata: x\n\n",
        "event: error\nid: 1:1:1:0\ndata: \n\n",
        "event: error\nid: 1:1:1:0\ndata: []\n\n",
        'event: error\nid: 1:1:1:0\ndata: {"code":"internal"}\n\n',
        "event: goaway\ndata: []\n\n",
        'event: goaway\ndata: {"reason":"r"}\n\n' * 2,
        "event: flush\nid: 1:1:1:0\ndata: \n\n" * 8193,
    ],
    ids=lambda text: text[:50],
)
def test_raw_codec_refuses_what_no_server_sends(text: str) -> None:
    """Everything that is not exactly a server's message is the same error."""
    with pytest.raises(DecodeError):
        CODEC.decode_server(text)
