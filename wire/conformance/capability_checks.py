"""What holds where an optional feature was agreed on, and that nothing of it is there where it was not."""

from __future__ import annotations

from conformance.checks import check
from conformance.client_session_checks import cut_at as cut_client_at
from conformance.client_stage import ClientStage, answer
from conformance.peer import require, text_of
from conformance.server_session_checks import cut_at as cut_server_at
from conformance.server_stage import FRAMES, ServerStage
from seedance_wire.capabilities import PIECES, ZSTD
from seedance_wire.compression import Compressor
from seedance_wire.messages import Delta, Flush, Hello, Resume, Resumed

__all__: list[str] = []

_PIECES = ("Once", " upon", " שלום", "", " 世界", "\n😀", " a time")
_TEXT = "".join(_PIECES)
_SENTENCE = "The quick brown fox jumps over the lazy dog, again and again. "
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")


# ---- clients


@check("Opening")
async def client_offers_each_capability_once(stage: ClientStage) -> None:
    """HELLO lists what it can do, and goes on without what WELCOME leaves out."""
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="Hello", durability="committed")
    peer = await stage.arrival()
    hello = await stage.greet(peer)
    require(len(set(hello.capabilities)) == len(hello.capabilities), f"it offers {hello.capabilities}")
    await stage.accept(peer)
    await submitting.result()
    for frame in answer(1, _PIECES):
        await peer.say(frame)
    require(await stage.text() == _TEXT, "the text is not the one that was sent")


@check("Pieces", feature="pieces")
async def client_takes_pieces(stage: ClientStage) -> None:
    """Frames without numbers are put to their places: two streams, a FLUSH in the middle, and the end."""
    stage.capabilities = (PIECES,)
    peer = await stage.begun()
    submitting = stage.start("submit", stream="b", prompt="Hello", durability="committed")
    await stage.accept(peer)
    await submitting.result()
    a, b = answer(1, _PIECES), answer(2, _PIECES[::-1])
    a[3] = Flush(stream_id=1, id=4, epoch=1, offset=a[3].offset)
    for index in range(len(a)):
        await peer.say(a[index], b[index])
    require(await stage.text("a") == _TEXT, "the first stream's text is another")
    require(await stage.text("b") == "".join(_PIECES[::-1]), "the second stream's text is another")


@check("Pieces", feature="pieces")
async def client_resumes_after_lost_pieces(stage: ClientStage) -> None:
    """An envelope is missing between two: RESUME from the last frame applied; one that repeats is dropped."""
    stage.capabilities = (PIECES,)
    peer = await stage.begun()
    frames = answer(1, _PIECES)
    await peer.say(frames[0])
    twice = peer.connection.send(frames[1])
    await peer.say_raw(twice)
    await peer.say_raw(twice)
    peer.connection.send(frames[2])  # and never reaches the wire
    await peer.say(frames[3])
    resume = await peer.expect(Resume)
    require(resume.last_processed_id == 2, f"RESUME after frame {resume.last_processed_id}, not 2")
    await peer.say(
        Resumed(stream_id=1, next_id=3, epoch=1, first_available_id=1, last_id=len(frames), live=False)
    )
    for frame in frames[2:]:
        await peer.say(frame)
    require(await stage.text() == _TEXT, "the text is not the one that was sent")


@check("Compression", feature="zstd")
async def client_takes_compressed_messages(stage: ClientStage) -> None:
    """Messages in one zstd frame after the other, each read when it is there, some of them plain."""
    stage.capabilities = (ZSTD,)
    peer = await stage.begun()
    pieces = (_SENTENCE,) * 12
    compressor = Compressor(trial_messages=0)
    for number, frame in enumerate(answer(1, pieces)):
        payload = peer.connection.send(frame)
        require(isinstance(payload, bytes) and payload[:4] != _ZSTD_MAGIC, "the runner compressed by itself")
        assert isinstance(payload, bytes)
        # A frame of three messages, then one that travels as it is.
        await peer.say_raw(payload if number % 4 == 3 else compressor.pack(payload, last=number % 4 == 2))
    require(await stage.text() == "".join(pieces), "the text is not the one that was sent")


@check("Compression", feature="zstd")
async def client_closes_on_what_unfolds_too_far(stage: ClientStage) -> None:
    """A few bytes that become more than a message may have: close with 1009; what is no zstd: with 4400."""
    stage.capabilities = (ZSTD,)
    for payload, wanted in ((_bomb(), 1009), (_ZSTD_MAGIC + b"\xff" * 20, 4400)):
        peer = await stage.begun()
        await peer.say_raw(payload)
        code = await peer.closed()
        require(code == wanted, f"it closed with {code}, not {wanted}")
        await stage.anew()


def _bomb() -> bytes:
    """A message of zeros over every limit, in well under a kilobyte."""
    packed = Compressor(trial_messages=0).pack(bytes(4 << 20), last=False)
    require(len(packed) < 2000, "the bomb is no bomb")
    return packed


@check("Pieces", feature="pieces")
async def client_survives_a_cut_among_pieces(stage: ClientStage) -> None:
    """With all that it offers agreed on, cut at a few bytes: its application gets each piece once."""
    stage.capabilities = (PIECES, ZSTD)
    for cut_after in (250, 300, 333, 350, 375, 400):
        await cut_client_at(stage, cut_after)


# ---- servers


@check("Opening")
async def server_agrees_on_what_was_offered_alone(stage: ServerStage) -> None:
    """WELCOME names no capability that HELLO did not, and none that nobody knows."""
    for offered in ((), ("of-the-future",), (PIECES, "of-the-future"), (ZSTD,)):
        peer = await stage.connect()
        welcome = await peer.greet(capabilities=offered)
        surplus = set(welcome.capabilities) - set(offered) | {"of-the-future"} & set(welcome.capabilities)
        require(not surplus, f"it was offered {offered} and agreed on {welcome.capabilities}")
        accepted = await peer.begin("|".join(_PIECES))
        require(text_of(await peer.frames(accepted.stream_id)) == _TEXT, "the answer is another")


@check("Pieces", feature="pieces")
async def server_sends_pieces(stage: ServerStage) -> None:
    """All frames in envelopes of pieces; whole again behind RESUMED, from wherever it was asked for."""
    peer = await stage.connect()
    welcome = await peer.greet(capabilities=(PIECES,))
    require(PIECES in welcome.capabilities, "it did not agree on what it has")
    accepted = await peer.begin("|".join(_PIECES))
    frames = await peer.frames(accepted.stream_id)
    require(text_of(frames) == _TEXT, f"the text is {text_of(frames)!r}")
    await peer.cut()
    back = await stage.connect()
    await back.greet(welcome, streams=1, capabilities=(PIECES,))
    text = text_of(frames[:2])
    resumed = await back.resume(accepted.stream_id, 2, text)
    require(isinstance(resumed, Resumed), f"RESUME was answered with {resumed}")
    rest = text_of(await back.frames(accepted.stream_id))
    require(text + rest == _TEXT, f"the text is {text + rest!r}")


@check("Compression", feature="zstd")
async def server_takes_and_sends_compressed_messages(stage: ServerStage) -> None:
    """What the client compresses is read, and what comes is read, compressed or not, hundreds of messages."""
    peer = await stage.connect()
    welcome = await peer.greet(capabilities=(ZSTD,))
    require(ZSTD in welcome.capabilities, "it did not agree on what it has")
    compressor = Compressor(trial_messages=0)
    send = peer.connection.send

    def packed(*messages: Hello) -> bytes | str:
        payload = send(*messages)
        assert isinstance(payload, bytes)
        return compressor.pack(payload, last=False)

    peer.connection.send = packed  # type: ignore[method-assign,assignment]
    accepted = await peer.begin("|".join(_SENTENCE for _ in range(60)))
    got, texts = 0, ""
    while got < 61:
        event = await peer.hear()
        if isinstance(event, FRAMES):
            got = event.id
            texts += event.text if isinstance(event, Delta) else ""
            await peer.acknowledge(accepted.stream_id, event.id)
    require(texts == _SENTENCE * 60, "the text is another")


@check("Compression", feature="zstd")
async def server_closes_on_what_unfolds_too_far(stage: ServerStage) -> None:
    """A few bytes that become more than a message may have: close with 1009; what is no zstd: with 4400."""
    for payload, wanted in ((_bomb(), 1009), (_ZSTD_MAGIC + b"\xff" * 20, 4400)):
        peer = await stage.connect()
        await peer.greet(capabilities=(ZSTD,))
        await peer.say_raw(payload)
        code = await peer.closed()
        require(code == wanted, f"it closed with {code}, not {wanted}")


@check("Pieces", feature="pieces")
async def server_survives_a_cut_among_pieces(stage: ServerStage) -> None:
    """With all that it has agreed on, cut at a few bytes: all frames come, each once."""
    for cut_after in (250, 300, 333, 350, 375, 400):
        await cut_server_at(stage, cut_after, (PIECES, ZSTD))
