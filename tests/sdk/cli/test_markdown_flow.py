"""Tests of `seedance_sdk.cli.markdown_flow`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_sdk.cli.markdown_flow import MarkdownFlow

TEXT = "# Title\n\nA paragraph\nof two lines.\n\n```py\nx = 1\n\ny = 2\n```\n\n- one\n- two\n\nthe end"
BLOCKS = [
    "# Title\n\n",
    "A paragraph\nof two lines.\n\n",
    "```py\nx = 1\n\ny = 2\n```\n\n",
    "- one\n- two\n\n",
    "the end",
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_blocks_come_out_whole_however_the_text_is_cut(size: int) -> None:
    """An empty line ends a block, but not inside a fence of code."""
    flow = MarkdownFlow()
    blocks = []
    for at in range(0, len(TEXT), size):
        blocks += flow.push(TEXT[at : at + size])
    assert [*blocks, flow.end()] == BLOCKS
    assert flow.open == ""


def test_what_is_open_is_what_has_not_come_out() -> None:
    """The last block is shown while it grows."""
    flow = MarkdownFlow()
    assert flow.push("one\n\ntw") == ["one\n\n"]
    assert flow.open == "tw"
    flow.push("o\nthr")
    assert flow.open == "two\nthr"


@pytest.mark.parametrize(
    "fence", ["```\n", "````\n```\n\n```\n", "~~~\n```\n\n", "```\n``` not a fence's end\n\n", "   ```\n"]
)
def test_a_fence_is_ended_by_its_own_kind_alone(fence: str) -> None:
    """What looks like an end inside of code is code."""
    flow = MarkdownFlow()
    assert flow.push(f"{fence}code\n\nmore\n\n") == []


@given(st.lists(st.text(alphabet="a `~\n#", max_size=6), max_size=30))
def test_no_text_is_lost_but_empty_lines_between_blocks(pieces: list[str]) -> None:
    """Whatever comes is shown, in order."""
    flow = MarkdownFlow()
    shown = "".join(block for piece in pieces for block in flow.push(piece)) + flow.end()
    assert shown.split() == "".join(pieces).split()
