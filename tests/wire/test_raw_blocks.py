"""Blocks of lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.errors import CloseCode, DecodeError
from seedance_wire.raw_blocks import Block, BlockParser, write_block
from tests.strategies import chunked, line_texts, optional, texts

lines = (texts | line_texts).map(lambda text: text.replace("\n", " "))
blocks = st.builds(
    Block,
    event=lines,
    data=texts | line_texts,
    id=optional(lines),
    extra=st.lists(
        st.tuples(st.sampled_from(["tokens", "x"]), lines), max_size=2, unique_by=lambda p: p[0]
    ).map(tuple),
)


@given(st.lists(blocks, max_size=4), st.data())
def test_block_parser_gives_back_every_block_at_any_chunking(
    written: list[Block], data: st.DataObject
) -> None:
    """Exact whatever the line breaks, spaces and characters, and wherever the bytes are cut."""
    payload = "".join(map(write_block, written)).encode()
    parser = BlockParser()
    read = [block for chunk in data.draw(chunked(payload)) for block in parser.feed(chunk)]
    assert read == written
    assert parser.between_blocks
    assert BlockParser().feed(payload.decode()) == written


@given(blocks)
def test_block_parser_gives_nothing_before_a_block_is_whole(block: Block) -> None:
    """Fed byte by byte, the block comes with its last byte and not before."""
    payload = write_block(block).encode()
    parser = BlockParser()
    for byte in payload[:-1]:
        assert parser.feed(bytes([byte])) == []
        assert not parser.between_blocks
    assert parser.feed(payload[-1:]) == [block]


@given(st.binary(max_size=60) | line_texts.map(str.encode), st.data())
def test_block_parser_raises_only_decode_error_and_alike_at_any_chunking(
    payload: bytes, data: st.DataObject
) -> None:
    """Arbitrary bytes give the same blocks and the same failure however they are cut."""

    def outcome(chunks: list[bytes]) -> tuple[list[Block], bool]:
        parser, found = BlockParser(), []
        try:
            for chunk in chunks:
                found += parser.feed(chunk)
        except DecodeError:
            return [], True
        return found, False

    whole = outcome([payload])
    assert outcome([bytes([byte]) for byte in payload])[1] == whole[1]
    assert outcome(data.draw(chunked(payload))) == whole


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("data: \n", ""),
        ("data:  a\n", " a"),
        ("data: a\r\n", "a\r"),
        ("data: a\ndata: \ndata: b\n", "a\n\nb"),
        ("data: a\u2028b\x85\n", "a\u2028b\x85"),
    ],
)
def test_block_parser_keeps_every_character_of_the_data(text: str, data: str) -> None:
    """One space belongs to the colon; LF alone ends a line."""
    assert BlockParser().feed(f"event: e\n{text}\n") == [Block(event="e", data=data)]


@pytest.mark.parametrize(
    "text",
    [
        "\n",
        "event: a\n\n",
        "data: a\n\n",
        "event: a\nevent: b\ndata: c\n\n",
        "event: a\nid: 1\nid: 2\ndata: c\n\n",
        "event: a\nx: 1\nx: 2\ndata: c\n\n",
        "event:a\ndata: c\n\n",
        "event: a\ndata\n\n",
    ],
)
def test_block_parser_refuses_what_write_block_never_makes(text: str) -> None:
    """An empty block, one without event or data, lines twice, no space after the colon."""
    with pytest.raises(DecodeError):
        BlockParser().feed(text)


def test_block_parser_refuses_bytes_that_are_not_utf8() -> None:
    """1007 is the code for that."""
    with pytest.raises(DecodeError) as caught:
        BlockParser().feed(b"event: \xff\n")
    assert caught.value.close_code is CloseCode.INVALID_DATA


@pytest.mark.parametrize("chunk", ["x", "x\n", "data: x\n"])
def test_block_parser_bounds_a_block(chunk: str) -> None:
    """A block that never ends is cut off, in one line or in many."""
    parser = BlockParser(max_block_chars=100)
    for _ in range(100 // len(chunk)):
        assert parser.feed(chunk) == []
    with pytest.raises(DecodeError) as caught:
        parser.feed(chunk + "x" * 10)
    assert caught.value.close_code is CloseCode.MESSAGE_TOO_BIG
