"""The guarded stream: it counts, it remembers a refusal, and it never lets anything follow half a send."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from seedance_sdk.guard import GuardedStream


def guarded() -> tuple[GuardedStream, trio.abc.Stream]:
    near, far = trio.testing.memory_stream_pair()
    return GuardedStream(near, max_message_bytes=1000, send_timeout_s=5), far


async def test_guard_ends_a_flood_before_the_upgrade() -> None:
    """20,000 bytes of answer are enough; the next read is refused."""
    stream, far = guarded()
    await far.send_all(bytes(20_000))
    assert len(await stream.receive_some(30_000)) == 20_000
    await far.send_all(b"x")
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some(10)
    assert stream.tripped == "20001 bytes of answer to the upgrade"
    assert stream.ended.is_set()


async def test_guard_budget_starts_anew_with_each_message() -> None:
    """Twice the largest message and 64 KiB may pass between two messages, any amount in all."""
    stream, far = guarded()
    stream.note_accepted()
    for _ in range(5):
        await far.send_all(bytes(67_536))
        assert len(await stream.receive_some(100_000)) == 67_536
        stream.note_message()
    await far.send_all(bytes(67_537))
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some(100_000)
    assert stream.tripped == "67537 bytes without a whole message"


@pytest.mark.parametrize(
    ("head", "status", "retry_after_ms", "detail"),
    [
        (b"HTTP/1.1 503 Busy\r\nretry-after: 12\r\n\r\n", 503, 12_000, ""),
        (b"HTTP/1.0 401\r\n\r\nno key", 401, None, "no key"),
        (b"HTTP/1.1 429 x\r\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n\r\n", 429, None, ""),
        (b"HTTP/1.1 403 x\r\n\r\na\x1b[31m\r\nb" + b"c" * 500, 403, None, "a [31m  b" + "c" * 191),
        (b"HTTP/2 200\r\n\r\n", None, None, ""),
        (b"HTTP/1.1 007 x\r\n\r\n", None, None, ""),
    ],
)
async def test_guard_remembers_a_refusal(
    head: bytes, status: int | None, retry_after_ms: int | None, detail: str
) -> None:
    """Status, time to wait and the first printable words, from bytes that may be anything."""
    stream, far = guarded()
    await far.send_all(head)
    await stream.receive_some(10_000)
    assert (stream.status, stream.retry_after_ms, stream.detail) == (status, retry_after_ms, detail)
    assert stream.ended.is_set() is (status is not None)


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        (b"Seedance-Error: draining\r\n\r\n", "draining"),
        (b"x: y\r\nseedance-error:overloaded\r\nz: 1\r\n\r\n", "overloaded"),
        (b"\r\n\r\nSeedance-Error: draining\r\n", None),
        (b"Seedance-Error: a b\r\n\r\n", None),
    ],
)
async def test_guard_reads_the_error_code_of_a_refusal(rest: bytes, code: str | None) -> None:
    """It stands in the head only: a body that quotes it says nothing."""
    stream, far = guarded()
    await far.send_all(b"HTTP/1.1 503 x\r\n" + rest)
    await stream.receive_some(10_000)
    assert stream.error_code == code


async def test_guard_ends_with_its_transport() -> None:
    """Whoever waits for a stream's end is woken by it."""
    stream, far = guarded()
    await far.aclose()
    assert await stream.receive_some(10) == b""
    assert stream.ended.is_set()


@pytest.mark.parametrize("how", ["late", "cancelled"])
async def test_guard_aborts_after_an_incomplete_send(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A send that did not complete is the last one ever."""
    near, _far = trio.testing.lockstep_stream_pair()
    stream = GuardedStream(near, max_message_bytes=1000, send_timeout_s=5)
    if how == "late":
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x")
        assert stream.tripped == "nothing was read for 5 s"
    else:
        with trio.move_on_after(1):
            await stream.send_all(b"x")
    assert stream.ended.is_set()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"y")


async def test_guard_is_a_stream() -> None:
    """It passes trio's own conformance tests for streams."""

    async def make() -> tuple[trio.abc.Stream, trio.abc.Stream]:
        left, right = trio.testing.memory_stream_pair()
        pair = []
        for raw in (left, right):
            stream = GuardedStream(raw, max_message_bytes=10_000_000, send_timeout_s=60)
            stream.note_accepted()
            pair.append(stream)
        return pair[0], pair[1]

    await trio.testing.check_two_way_stream(make, None)


@pytest.mark.parametrize(
    ("answer", "cut_short"),
    [
        (b"", False),
        (b"H", True),
        (b"HTTP/1.1", True),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websock", True),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False),
        (b"HELO", False),
    ],
)
async def test_guard_knows_an_answer_that_was_cut_short(answer: bytes, cut_short: bool) -> None:
    """A connection that broke in the answer to the upgrade is a cut; another service's answer is none."""
    stream, far = guarded()
    if answer:
        await far.send_all(answer)
        await stream.receive_some(10_000)
    assert not stream.cut_short
    await far.aclose()
    await stream.receive_some(10)
    assert stream.cut_short is cut_short
