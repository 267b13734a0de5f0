"""Tests of `seedance_server.guard`."""

import socket

import pytest
import trio
import trio.testing

from seedance_server.guard import GuardedStream, GuardLimits


def limits(**more):
    values = {
        "before_accept_bytes": 100,
        "between_messages_bytes": 1000,
        "bytes_per_second": 1000,
        "burst_bytes": 2000,
        "send_timeout_s": 10,
        "linger_s": 1,
        "linger_bytes": 5000,
    }
    return GuardLimits(**(values | more))


def guarded(**more):
    ours, theirs = trio.testing.memory_stream_pair()
    return GuardedStream(ours, limits(**more)), theirs


async def test_guard_ends_the_connection_when_too_much_comes_before_accept() -> None:
    """A flood before accept is read up to the budget and no further."""
    guard, client = guarded()
    await client.send_all(b"x" * 100)
    assert await guard.receive_some(200) == b"x" * 100
    await client.send_all(b"x")
    with pytest.raises(trio.BrokenResourceError):
        await guard.receive_some(200)
    assert guard.statistics().tripped == "before_accept_bytes"
    assert await client.receive_some() == b""


async def test_guard_counts_anew_after_each_message(autojump_clock) -> None:
    """Between two complete messages so many bytes may come, in all as many as the peer likes."""
    guard, client = guarded()
    guard.note_accepted()
    for _ in range(5):
        await client.send_all(b"x" * 1000)
        assert len(await guard.receive_some(2000)) == 1000
        guard.note_message()
    await client.send_all(b"x" * 1001)
    with pytest.raises(trio.BrokenResourceError):
        await guard.receive_some(2000)
    assert guard.statistics().tripped == "between_messages_bytes"


async def test_guard_slows_a_fast_peer_without_killing_it(autojump_clock) -> None:
    """Above the rate reading is delayed, so that the rate holds in the long run."""
    guard, client = guarded(between_messages_bytes=10**9)
    guard.note_accepted()
    began_s = trio.current_time()
    received = 0
    for _ in range(100):
        await client.send_all(b"x" * 100)
        received += len(await guard.receive_some())
    assert received == 10_000
    await client.send_all(b"x")
    await guard.receive_some()  # waits for what was read before
    assert trio.current_time() - began_s == pytest.approx((10_000 - 2000) / 1000)
    assert guard.statistics().delayed_s == pytest.approx(8)


async def test_guard_loses_no_byte_to_a_cancelled_read(autojump_clock) -> None:
    """A reader gives way to another, also one that is being slowed down."""
    guard, client = guarded(between_messages_bytes=10**9)
    guard.note_accepted()
    sent = bytes(range(256)) * 20
    await client.send_all(sent)
    received, began_s = b"", trio.current_time()
    while len(received) < len(sent):
        with trio.move_on_after(0.3):
            received += await guard.receive_some(700)
    assert received == sent
    assert guard.statistics().delayed_s == pytest.approx(trio.current_time() - began_s)


async def test_guard_replays_the_head_and_holds_the_rest_until_accepted(autojump_clock) -> None:
    """Nothing is handed out between a request and its acceptance, and nothing is counted twice."""
    guard, client = guarded()
    await client.send_all(b"world")
    guard.replay(b"head", b"hello ")
    assert await guard.receive_some(3) == b"hea"
    assert await guard.receive_some() == b"d"
    with trio.move_on_after(1) as patience:
        await guard.receive_some()
    assert patience.cancelled_caught
    guard.note_accepted()
    assert await guard.receive_some() == b"hello "
    assert await guard.receive_some() == b"world"
    assert guard.statistics().received_bytes == 5


async def test_guard_lets_nothing_follow_a_cancelled_send() -> None:
    """Half a frame never precedes another: a send that doesn't complete is the last."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    guard = GuardedStream(ours, limits())
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard.send_all, b"x" * 1000)
            await trio.testing.wait_all_tasks_blocked()
            assert await theirs.receive_some(10) == b"x" * 10
            scope.cancel()
    with pytest.raises(trio.BrokenResourceError):
        await guard.send_all(b"y")
    with pytest.raises(trio.BrokenResourceError):
        await theirs.send_all(b"z")


async def test_guard_sends_together_what_is_said_in_one_block() -> None:
    """Whoever says it: in one go, bounded like any other send."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    guard = GuardedStream(ours, limits())
    async with trio.open_nursery() as nursery:

        async def speak() -> None:
            async with guard.together():
                await guard.send_all(b"one ")
                async with trio.open_nursery() as others:
                    others.start_soon(guard.send_all, b"two ")
                await guard.send_all(b"three")

        nursery.start_soon(speak)
        assert await theirs.receive_some(100) == b"one two three"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.send_all, b"four")
        assert await theirs.receive_some(100) == b"four"


async def test_guard_lets_nothing_follow_a_cancelled_block() -> None:
    """As with a single send: what was gathered doesn't leave in part."""
    guard, client = guarded()
    with trio.CancelScope() as scope:
        async with guard.together():
            await guard.send_all(b"one")
            scope.cancel()
            await trio.lowlevel.checkpoint()
    with pytest.raises(trio.BrokenResourceError):
        await guard.send_all(b"two")
    assert await client.receive_some() == b""


async def test_guard_cuts_a_peer_that_does_not_read(autojump_clock) -> None:
    """A send completes in time or ends the connection."""
    ours, _theirs = trio.testing.lockstep_stream_pair()
    guard = GuardedStream(ours, limits())
    began_s = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await guard.send_all(b"x")
    assert trio.current_time() - began_s == pytest.approx(10)
    assert guard.statistics().tripped == "send_timeout_s"


async def test_guard_reads_the_rest_away_when_it_closes(autojump_clock) -> None:
    """Our last words arrive although the peer was still talking; both bounds end the politeness."""
    guard, client = guarded()
    await client.send_all(b"x" * 400)
    await guard.send_all(b"bye")
    await client.send_eof()
    await guard.aclose()
    assert await client.receive_some() == b"bye"

    guard, client = guarded()
    began_s = trio.current_time()
    await guard.aclose()  # the peer neither speaks nor leaves
    assert trio.current_time() - began_s == pytest.approx(1)


async def test_guard_abort_is_repeatable_and_at_once() -> None:
    """Aborting never waits and may be done twice, also after a close."""
    guard, client = guarded()
    await guard.abort()
    await guard.abort()
    await guard.aclose()
    assert await client.receive_some() == b""


class HalfCloseable(trio.abc.HalfCloseableStream):
    """A socket that is busy: sends and reads take a second and must not overlap."""

    def __init__(self):
        self.busy_sending = self.busy_reading = self.closed = False
        self.ended = 0

    async def _claim(self, name):
        if getattr(self, name):
            raise trio.BusyResourceError(name)
        setattr(self, name, True)
        try:
            await trio.sleep(1)
        finally:
            setattr(self, name, False)

    async def send_all(self, data):
        await self._claim("busy_sending")

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def send_eof(self):
        self.ended += 1
        await self._claim("busy_sending")

    async def receive_some(self, max_bytes=None):
        await self._claim("busy_reading")
        return b""

    async def aclose(self):
        self.closed = True
        await trio.lowlevel.checkpoint()


async def test_guard_sends_one_thing_after_the_other(autojump_clock) -> None:
    """What is sent together and what the library sends by itself, such as a pong, may meet."""
    guard = GuardedStream(HalfCloseable(), limits())

    async def some() -> None:
        async with guard.together():
            await guard.send_all(b"some")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(some)
        await trio.sleep(0.5)
        nursery.start_soon(guard.send_all, b"pong")
    assert guard.statistics().sent_bytes == len(b"somepong")


async def test_guard_lets_nothing_follow_a_send_that_was_cancelled_before_its_turn(autojump_clock) -> None:
    """Its bytes are missing: what comes behind them would make no sense to the peer."""
    guard = GuardedStream(transport := HalfCloseable(), limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.send_all, b"first")
        with trio.move_on_after(0.5) as patience:
            await trio.sleep(0.1)
            await guard.send_all(b"second")
    assert patience.cancelled_caught
    assert transport.closed
    with pytest.raises(trio.BrokenResourceError):
        await guard.send_all(b"third")


async def test_guard_does_not_end_the_line_while_somebody_speaks(autojump_clock) -> None:
    """A close beside a send leaves the send alone."""
    transport = HalfCloseable()
    guard = GuardedStream(transport, limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.send_all, b"last words")
        await trio.sleep(0.5)
        nursery.start_soon(guard.aclose)
    assert transport.closed
    assert transport.ended == 0


async def test_guard_looks_broken_to_whoever_speaks_or_reads_while_it_closes(autojump_clock) -> None:
    """Not busy: that would be a bug in the caller's eyes."""
    for call in (lambda guard: guard.send_all(b"x"), lambda guard: guard.receive_some()):
        guard = GuardedStream(transport := HalfCloseable(), limits(linger_s=3.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard.aclose)
            await trio.sleep(0.5)
            transport.busy_reading = True
            with pytest.raises(trio.BrokenResourceError):
                await call(guard)
            transport.busy_reading = False


async def test_guard_lets_a_reader_stand_that_can_not_acknowledge(autojump_clock) -> None:
    """Full buffers hold its stream up for longer than a WebSocket's would be waited for; then it is cut."""
    ours, client = trio.testing.lockstep_stream_pair()
    guard = GuardedStream(ours, limits(send_timeout_s=10))
    guard.let_stand(60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.send_all, b"late")
        await trio.sleep(50)
        assert await client.receive_some() == b"late"
    guard.let_stand(None)
    began_s = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await guard.send_all(b"never")
    assert trio.current_time() - began_s == pytest.approx(10)
    assert guard.statistics().tripped == "send_timeout_s"


@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option: Linux has"
)
async def test_guard_lets_a_reader_stand_in_the_kernel_too() -> None:
    """It would cut a window that stays shut for as long as bytes may stay unacknowledged."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, await trio.open_tcp_stream(*listener.socket.getsockname()) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
        guard = GuardedStream(stream, limits())
        for timeout_s, expected_ms in ((60, 60_000), (30, 30_000), (None, 20_000)):
            guard.let_stand(timeout_s)
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected_ms
