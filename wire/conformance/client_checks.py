"""What a client must do: handshake, frames, their order, their end, and what is nobody's answer."""

from __future__ import annotations

import hashlib
import json

import trio
from attrs import evolve

from conformance.checks import EVERY, check
from conformance.client_stage import ClientStage, answer
from conformance.peer import ALONGSIDE, require
from seedance_wire import seedance_pb2 as pb
from seedance_wire.codec import make_codec
from seedance_wire.messages import (
    Accepted,
    Ack,
    AckLevel,
    Bye,
    Cancel,
    Checkpoint,
    Delta,
    Durability,
    Error,
    ErrorCode,
    FinishReason,
    Flow,
    FlowAction,
    Flush,
    Frame,
    Hello,
    Phase,
    Refused,
    Status,
    StreamCheckpoint,
    Submit,
)

__all__: list[str] = []

_PIECES = ("Hel", "lo, ", "שלום", " 世界", "\n😀", "")
_TEXT = "".join(_PIECES)


def _encoded(stage: ClientStage, *frames: Frame) -> bytes | str:
    """Frames past the rules, which would not let them out."""
    return make_codec(stage.subprotocol).encode(frames)


@check("Opening", subprotocols=EVERY)
async def client_greets_first(stage: ClientStage) -> None:
    """The first message is HELLO of a fresh session; nothing else is said before WELCOME."""
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="Hello", durability="committed")
    peer = await stage.arrival()
    hello = await peer.expect(Hello, ())
    require(hello.session_id is None, "HELLO names a session, and there was none")
    with trio.move_on_after(0.1):
        event = await peer.hear()
        require(False, f"{type(event).__name__} came before WELCOME")
    require(not submitting.is_done, "the request was answered before the server said anything")


@check("Messages", subprotocols=EVERY)
async def client_takes_an_answer_whole(stage: ClientStage) -> None:
    """SUBMIT has number 1, a key of 16 to 64 bytes and the prompt; the text is that of the frames."""
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="שלום", durability="committed")
    peer = await stage.greeted()
    submit = await stage.accept(peer)
    require((submit.sequence_id, submit.prompt) == (1, "שלום"), f"this was not submitted: {submit}")
    await submitting.result()
    for frame in answer(1, _PIECES):
        await peer.say(frame)
    require(await stage.text() == _TEXT, "the text is not the one that was sent")


@check("Sessions", subprotocols=EVERY)
async def client_goes_on_with_the_servers_counter(stage: ClientStage) -> None:
    """The first number is `last_sequence_id` of WELCOME plus one."""
    await stage.connect()
    stage.start("submit", stream="a", prompt="Hello", durability="committed")
    peer = await stage.greeted(last_sequence_id=41)
    submit = await peer.expect(Submit)
    require(submit.sequence_id == 42, f"the number is {submit.sequence_id}, not 42")


@check("Frames", subprotocols=EVERY)
async def client_takes_frames_of_several_streams_from_one_message(stage: ClientStage) -> None:
    """A batch of frames is applied frame by frame, each to its stream, a FLUSH in the middle too."""
    peer = await stage.begun()
    submitting = stage.start("submit", stream="b", prompt="Hello", durability="committed")
    await stage.accept(peer)
    await submitting.result()
    a, b = answer(1, ("שלום", "", " עולם")), answer(2, ("שלום", " עולם", "!"))
    a[1] = Flush(stream_id=1, id=2, epoch=1, offset=a[1].offset)
    await peer.say(a[0], b[0], b[1], a[1], b[2], a[2])
    await peer.say(b[3], a[3])
    require(await stage.text("a") == "שלום עולם", "the first stream's text is another")
    require(await stage.text("b") == "שלום עולם!", "the second stream's text is another")


@check("Differences")
async def client_undoes_differences(stage: ClientStage) -> None:
    """Text that travels as differences of code points is the text that was meant."""
    peer = await stage.begun()
    pieces = ("привет", ", как ", "дела", "? 你好吗", "我很好", " 😀", "😁😂")
    for frame in answer(1, pieces):
        await peer.say(frame)
    require(peer.connection.statistics().differences_sent > 2, "the runner sent no differences")
    require(await stage.text() == "".join(pieces), "the text is not the one that was sent")


@check("Apply rule")
async def client_drops_duplicates(stage: ClientStage) -> None:
    """A frame whose id was applied is dropped, whatever it holds."""
    peer = await stage.begun()
    frames = answer(1, ("one ", "two ", "three"))
    await peer.say(*frames[:2])
    await peer.say_raw(_encoded(stage, frames[0], frames[1], *frames[1:]))
    require(await stage.text() == "one two three", "a piece is there twice, or missing")


@check("Apply rule")
async def client_drops_frames_of_a_former_epoch(stage: ClientStage) -> None:
    """A frame of an epoch below WELCOME's is not the session's any more."""
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="Hello", durability="committed")
    stage.epoch = 6
    peer = await stage.greeted()
    await stage.accept(peer)
    await submitting.result()
    frames = answer(1, ("one ", "two"), epoch=7)
    stale = Delta(stream_id=1, id=1, epoch=6, offset=0, text="never ")
    await peer.say_raw(_encoded(stage, stale, *frames))
    require(await stage.text() == "one two", "the former owner's piece was taken")


@check("Messages", subprotocols=EVERY)
async def client_acknowledges_what_was_taken(stage: ClientStage) -> None:
    """ACK names the last frame that the application took, and none before it took it."""
    peer = await stage.begun()
    frames = answer(1, ("0123456789",) * 4)
    await peer.say(*frames[:4])
    with trio.move_on_after(0.15):
        ack = await peer.expect(Ack, ALONGSIDE[1:])
        require(False, f"{ack} came, and nothing was taken")
    await stage.subject.ask("read", stream="a", bytes=40)
    acknowledged = 0
    while acknowledged < 4:
        acknowledged = dict((await peer.expect(Ack, ALONGSIDE[1:])).processed).get(1, 0)
    await peer.say(frames[4])
    await stage.text()


@check("Frames", subprotocols=EVERY)
async def client_tells_a_failure_of_one_stream(stage: ClientStage) -> None:
    """ERROR ends its stream with its code, after the text before it; other streams go on."""
    peer = await stage.begun()
    submitting = stage.start("submit", stream="b", prompt="Hello", durability="committed")
    await stage.accept(peer)
    await submitting.result()
    failure = Error(stream_id=1, id=2, epoch=1, offset=4, code=ErrorCode.NUMERICAL_ERROR, message="no")
    await peer.say(answer(1, ("half",))[0], failure, *answer(2, ("whole",)))
    refused = await stage.start("read", stream="a").refusal()
    require(
        (refused.code, refused.text) == ("numerical_error", "half"), f"it says {refused}, {refused.text!r}"
    )
    require(await stage.text("b") == "whole", "the other stream's text is another")


@check("Messages", subprotocols=EVERY)
async def client_tells_a_refusal(stage: ClientStage) -> None:
    """REFUSED ends its request with its code; the connection serves the next one."""
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="Hello", durability="committed")
    peer = await stage.greeted()
    submit = await peer.expect(Submit)
    await peer.say(
        Refused(sequence_id=submit.sequence_id, code=ErrorCode.CONTEXT_LENGTH_EXCEEDED, message="too long")
    )
    refused = await submitting.refusal()
    require(refused.code == "context_length_exceeded", f"it says {refused}")
    submitting = stage.start("submit", stream="b", prompt="Hello", durability="committed")
    require((await stage.accept(peer)).sequence_id == 2, "the next number is not 2")
    await peer.say(*answer(1, ("fine",)))
    await submitting.result()
    require(await stage.text("b") == "fine", "the text is not the one that was sent")


@check("Messages", subprotocols=EVERY, feature="cancel")
async def client_cancels(stage: ClientStage) -> None:
    """CANCEL has the next number and its stream's; what comes before the end is still the answer."""
    peer = await stage.begun()
    frames = answer(1, ("some ", "more"), reason=FinishReason.CANCELLED)
    await peer.say(frames[0])
    await stage.subject.ask("cancel", stream="a")
    cancel = await peer.expect(Cancel)
    require((cancel.sequence_id, cancel.stream_id) == (2, 1), f"this is not it: {cancel}")
    await peer.say(*frames[1:])
    read = await stage.subject.ask("read", stream="a")
    require(
        (read.get("text"), read.get("finish_reason")) == ("some more", "cancelled"), f"it says that {read}"
    )


@check("Messages", subprotocols=EVERY)
async def client_ignores_what_is_for_information(stage: ClientStage) -> None:
    """FLOW and STATUS ask for nothing, and a CHECKPOINT that fits changes no text."""
    peer = await stage.begun()
    await peer.say(Status(stream_id=1, phase=Phase.QUEUED, position=3))
    await peer.say(Status(stream_id=1, phase=Phase.PREFILL, tokens_done=1, tokens_total=2))
    frames = answer(1, ("one ", "two"))
    await peer.say(frames[0])
    await peer.say(Flow(stream_id=1, action=FlowAction.THROTTLE, window=32))
    digest = hashlib.sha256(b"one ").digest()[:16]
    streams = (StreamCheckpoint(stream_id=1, frame_id=1, digest=digest),)
    await peer.say(Checkpoint(sequence_id=1, timestamp_ms=0, ack_level=AckLevel.COMMITTED, streams=streams))
    await peer.say(*frames[1:])
    require(await stage.text() == "one two", "the text is not the one that was sent")


@check("Messages")
async def client_closes_on_a_checkpoint_that_differs(stage: ClientStage) -> None:
    """A digest of the frame just applied that is not that of its own text: close with 4400."""
    peer = await stage.begun()
    await peer.say(answer(1, ("one ",))[0])
    streams = (StreamCheckpoint(stream_id=1, frame_id=1, digest=bytes(16)),)
    await peer.say(Checkpoint(sequence_id=1, timestamp_ms=0, ack_level=AckLevel.COMMITTED, streams=streams))
    code = await peer.closed()
    require(code == 4400, f"it closed with {code}, not 4400")


@check("Apply rule", subprotocols=EVERY)
async def client_closes_on_a_digest_that_differs_at_the_end(stage: ClientStage) -> None:
    """A stream that nobody keeps and whose digest is wrong: close with 4400, and it has not ended well."""
    peer = await stage.begun(durability=Durability.NONE)
    frames = answer(1, ("one ", "two"))
    last = frames[2]
    assert isinstance(last, Flush)
    assert last.final is not None
    await peer.say(*frames[:2], evolve(last, final=evolve(last.final, digest=bytes(32))))
    code = await peer.closed()
    require(code == 4400, f"it closed with {code}, not 4400")
    await stage.start("read", stream="a").refusal()


@check("Encodings", subprotocols=EVERY)
async def client_closes_on_what_is_no_message(stage: ClientStage) -> None:
    """Bytes that are no envelope: close with 4400; the other kind of WebSocket message: with 1003."""
    peer = await stage.begun(durability=Durability.NONE)
    await peer.say_raw(b"\xff\xff" if stage.subprotocol == "seedance.v1" else "{no message")
    code = await peer.closed()
    require(code == 4400, f"it closed with {code}, not 4400")
    other = "text" if stage.subprotocol == "seedance.v1" else b"binary"
    await stage.anew()
    peer = await stage.begun("b", durability=Durability.NONE)
    await peer.say_raw(other)
    code = await peer.closed()
    require(code == 1003, f"it closed with {code}, not 1003")


@check("States")
async def client_closes_on_what_is_not_legal_now(stage: ClientStage) -> None:
    """An ACCEPTED for nothing, a frame of a stream that never began: close with 4400."""
    codec = make_codec(stage.subprotocol)
    nothing = Accepted(sequence_id=9, stream_id=9, durability=Durability.COMMITTED)
    for wrong in (nothing, answer(5, ("x",))[0]):
        peer = await stage.begun(durability=Durability.NONE)
        await peer.say_raw(codec.encode((wrong,)))
        code = await peer.closed()
        require(code == 4400, f"on {type(wrong).__name__} it closed with {code}, not 4400")
        await stage.anew()


@check("Versions", subprotocols=EVERY)
async def client_skips_fields_that_it_does_not_know(stage: ClientStage) -> None:
    """Fields of later minor versions are skipped, in WELCOME and in frames."""
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="Hello", durability="committed")
    peer = await stage.arrival()
    say = peer.connection.send
    peer.connection.send = lambda *messages: _of_the_future(say(*messages))  # type: ignore[method-assign]
    await stage.greet(peer)
    await stage.accept(peer)
    await submitting.result()
    for frame in answer(1, ("one ", "two")):
        await peer.say(frame)
    require(await stage.text() == "one two", "the text is not the one that was sent")


def _of_the_future(payload: bytes | str) -> bytes | str:
    """The same message with a field that no version has yet."""
    if isinstance(payload, bytes):
        envelope = pb.ServerEnvelope.FromString(payload)
        inner = getattr(envelope, str(envelope.WhichOneof("message")))
        inner.MergeFromString(b"\xfa\xff\x01\x03new")  # field 4095, of three bytes
        return envelope.SerializeToString()
    if payload.startswith("{"):
        return json.dumps(json.loads(payload) | {"of_the_future": {"x": [1]}})
    head, _, rest = payload.partition("\n")
    return f"{head}\nof_the_future: x\n{rest}"


@check("Signs of life", subprotocols=EVERY)
async def client_answers_a_heartbeat(stage: ClientStage) -> None:
    """A ping is answered by the pong that RFC 6455 demands, with the same three bytes."""
    peer = await stage.begun()
    await peer.answers_ping(b"SD\x07")


@check("States", subprotocols=EVERY)
async def client_says_goodbye(stage: ClientStage) -> None:
    """When its application is done, BYE; then the server closes with 1000."""
    peer = await stage.begun()
    await peer.say(*answer(1, ("done",)))
    await stage.text()
    closing = stage.start("close")
    await peer.expect(Bye)
    await peer.close()
    await closing.result()
