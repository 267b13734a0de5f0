"""Recorded answers in every encoding."""

import json

import pytest

from token_modes import MODES, play, sse_chunk

RECORDING = [
    [("Once", 1), (" upon", 1), (" a", 1), (" time", 2)],
    [("שלום", 1), (" עולם", 1)],
]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_carries_the_same_answers(mode: str) -> None:
    """`play` itself compares what the client got with what was sent; lean modes are leaner."""
    played = play(RECORDING, mode, model="m", repeats=1)
    assert 0 < played.bytes <= play(RECORDING, "OpenAI SSE", model="m", repeats=1).bytes
    assert played.compressed == ("always" in mode)


def test_sse_chunk_is_one_of_openais() -> None:
    """With the fields that their documentation names, in a chunk of HTTP/1.1."""
    size, _, rest = sse_chunk("é", answer=1, model="m").partition(b"\r\n")
    assert len(rest) == int(size, 16) + 2
    chunk = json.loads(rest.decode().removeprefix("data: "))
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"][0]["delta"] == {"content": "é"}
    assert set(chunk) == {"id", "object", "created", "model", "choices"}
