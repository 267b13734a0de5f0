"""The ways in which recorded answers can travel, each played through its encoder: bytes and processor time.

An answer is the pieces that a client received. A step sends the next piece of every answer that has one, as a
server does that serves them over one connection. Bytes are those of WebSocket messages with their headers;
of the SSE mode, which has a connection for each answer, those of HTTP chunks with theirs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count

from attrs import frozen

from seedance_wire.capabilities import PIECES, ZSTD
from seedance_wire.compression import TRIAL_MESSAGES
from seedance_wire.connection import Connection
from seedance_wire.messages import Accepted, Delta, Durability, Frame, Hello, Limits, Submit, Welcome
from seedance_wire.state import Role

__all__ = ["MODES", "Played", "Recording", "play", "sse_chunk"]

Recording = Sequence[Sequence[tuple[str, int]]]
"""Answers; of each its pieces: the text, and how many tokens it stands for."""

EPOCH = 3
FIRST_STREAM = 100
"""What a session in use has: numbers of two digits take no more room than those of one."""


@frozen
class Mode:
    """A way to travel.

    Attributes:
        subprotocol: Of WebSocket; empty for SSE.
        capabilities: That the client offers.
        always_zstd: Compress from the first message on, whatever it brings.
    """

    subprotocol: str
    capabilities: tuple[str, ...] = ()
    always_zstd: bool = False


MODES = {
    "seedance.v1": Mode("seedance.v1", (PIECES, ZSTD)),
    "pieces alone": Mode("seedance.v1", (PIECES,)),
    "pieces, zstd always": Mode("seedance.v1", (PIECES, ZSTD), always_zstd=True),
    "whole frames": Mode("seedance.v1"),
    "whole frames, zstd always": Mode("seedance.v1", (ZSTD,), always_zstd=True),
    "seedance.v1.raw": Mode("seedance.v1.raw"),
    "seedance.v1.json": Mode("seedance.v1.json"),
    "OpenAI SSE": Mode(""),
}


@frozen
class Played:
    """What a mode took, of one token.

    Attributes:
        bytes: On the wire.
        encode_us: Of the server's processor.
        decode_us: Of the client's; nothing for SSE.
        compressed: Whether the connection compressed in the end.
    """

    bytes: float
    encode_us: float
    decode_us: float
    compressed: bool


def sse_chunk(text: str, *, answer: int, model: str) -> bytes:
    """Return what a server that follows OpenAI's documentation sends for a piece of a chat completion."""
    chunk = {
        "id": f"chatcmpl-{answer:032x}",
        "object": "chat.completion.chunk",
        "created": 1_767_225_600,
        "model": model,
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
    }
    data = f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def play(recording: Recording, mode: str, *, model: str, repeats: int) -> Played:
    """Send a recording in a mode; the least time of all repeats counts.

    Args:
        recording: What to send.
        mode: One of `MODES`.
        model: Its name stands in each chunk of SSE.
        repeats: How often.
    """
    chosen = MODES[mode]
    tokens = sum(tokens for answer in recording for _, tokens in answer)
    runs = [_run(recording, chosen, model) for _ in range(repeats)]
    size, _, _, compressed = runs[0]
    encode_s, decode_s = (min(run[index] for run in runs) for index in (1, 2))
    return Played(size / tokens, encode_s / tokens * 1e6, decode_s / tokens * 1e6, compressed)


def _run(recording: Recording, mode: Mode, model: str) -> tuple[int, float, float, bool]:
    if not mode.subprotocol:
        chunks, spent_s = _timed(
            lambda: [
                sse_chunk(text, answer=number, model=model)
                for number, answer in enumerate(recording)
                for text, _ in answer
            ]
        )
        return sum(map(len, chunks)), spent_s, 0.0, False
    server, client = _connected(len(recording), mode)
    batches = list(_batches(recording))
    payloads, encode_s = _timed(lambda: [server.send(*batch) for batch in batches])
    frames, decode_s = _timed(lambda: [frame for payload in payloads for frame in _read(client, payload)])
    assert frames == [frame for batch in batches for frame in batch]
    size = sum(map(_on_the_wire, payloads))
    return size, encode_s, decode_s, server.is_compressing


def _timed(work: Callable[[], list]) -> tuple[list, float]:  # type: ignore[type-arg]
    began_s = time.process_time()
    made = work()
    return made, time.process_time() - began_s


def _on_the_wire(payload: bytes | str) -> int:
    size = len(payload if isinstance(payload, bytes) else payload.encode())
    return size + (2 if size < 126 else 4 if size < 65_536 else 10)


def _read(client: Connection, payload: bytes | str) -> Iterator[object]:
    client.receive_data(payload)
    while (event := client.next_event()) is not None:
        yield event


def _connected(streams: int, mode: Mode) -> tuple[Connection, Connection]:
    """A server and a client behind the handshake, with streams that were accepted."""
    limits = Limits(max_message_bytes=262_144, max_streams=64, max_context_tokens=4096)
    trial = 0 if mode.always_zstd else TRIAL_MESSAGES
    server = Connection(Role.SERVER, mode.subprotocol, trial_messages=trial)
    client = Connection(Role.CLIENT, mode.subprotocol)
    server.receive_data(client.send(Hello(capabilities=mode.capabilities)))
    welcome = Welcome(
        session_id="s",
        epoch=EPOCH,
        last_sequence_id=0,
        model="m",
        limits=limits,
        capabilities=mode.capabilities,
    )
    client.receive_data(server.send(welcome))
    for number in range(streams):
        key = number.to_bytes(16)
        server.receive_data(client.send(Submit(sequence_id=number + 1, idempotency_key=key, prompt="p")))
        stream_id = FIRST_STREAM + number
        accepted = Accepted(sequence_id=number + 1, stream_id=stream_id, durability=Durability.COMMITTED)
        client.receive_data(server.send(accepted))
    for end in (server, client):
        while end.next_event() is not None:
            pass
    return server, client


def _batches(recording: Recording) -> Iterator[list[Frame]]:
    offsets = [0] * len(recording)
    for step in count():
        batch: list[Frame] = []
        for number, answer in enumerate(recording):
            with suppress(IndexError):
                text, tokens = answer[step]
                batch.append(
                    Delta(
                        stream_id=FIRST_STREAM + number,
                        id=step + 1,
                        epoch=EPOCH,
                        offset=offsets[number],
                        text=text,
                        token_count=tokens,
                    )
                )
                offsets[number] += len(text.encode())
        if not batch:
            return
        yield batch
