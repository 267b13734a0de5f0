"""What a server must do: handshake, answers, refusals, flow control, and what is nobody's request."""

from __future__ import annotations

import hashlib
import json

import trio
from attrs import evolve

from conformance.checks import EVERY, check
from conformance.peer import require, text_of
from conformance.server_stage import FRAMES, ServerPeer, ServerStage
from seedance_wire import seedance_pb2 as pb
from seedance_wire.codec import SUBPROTOCOLS, make_codec
from seedance_wire.messages import (
    Ack,
    Bye,
    Cancel,
    Checkpoint,
    Delta,
    Durability,
    Error,
    ErrorCode,
    Event,
    FinishReason,
    Flush,
    Hello,
    Message,
    Refused,
    Submit,
    UserEvent,
    Welcome,
)

__all__: list[str] = []

_PROMPT = "Hel|lo, |שלום| 世界|\n😀"
_TEXT = _PROMPT.replace("|", "")


def _raw(stage: ServerStage, message: Message) -> bytes | str:
    """A message past the rules, which would not let it out."""
    return make_codec(stage.subprotocol).encode((message,))


def _finish(frame: Delta | Flush | Error) -> FinishReason | None:
    return frame.final.finish_reason if isinstance(frame, Flush) and frame.final is not None else None


@check("Opening")
async def server_refuses_an_upgrade_without_a_known_subprotocol(stage: ServerStage) -> None:
    """400, and `Sec-WebSocket-Protocol` lists what it knows: a higher major version is never misread."""
    for offered in (["seedance.v9"], ["chat"]):
        status, headers = await stage.upgrade(offered)
        require(status == 400, f"for {offered} it answers {status}, not 400")
        listed = headers.get("sec-websocket-protocol", "")
        require("seedance.v1" in listed.replace(" ", "").split(","), f"it lists {listed!r}")


@check("Opening")
async def server_takes_the_first_subprotocol_of_its_list(stage: ServerStage) -> None:
    """Of those offered, whatever their order; one of a later major version beside them does no harm."""
    status, headers = await stage.upgrade(["seedance.v9", *reversed(SUBPROTOCOLS)])
    took = headers.get("sec-websocket-protocol")
    require((status, took) == (101, SUBPROTOCOLS[0]), f"it answers {status} and took {took}")
    require("sec-websocket-extensions" not in headers, "it negotiated an extension")


@check("Opening", subprotocols=EVERY)
async def server_welcomes(stage: ServerStage) -> None:
    """HELLO of any minor version is answered by WELCOME: no higher version than asked, a fresh session."""
    for minor in (0, 1, 1000):
        peer = await stage.connect()
        welcome = await peer.greet(minor_version=minor)
        require(welcome.minor_version <= minor, f"it speaks {welcome.minor_version}, where {minor} was asked")
        fresh = (welcome.session_present, welcome.last_sequence_id)
        require(fresh == (False, 0), "a fresh session has something in it")
        require(len(welcome.resume_token) >= 16, "the session has no token, or one that can be guessed")


@check("States", subprotocols=EVERY)
async def server_wants_hello_first(stage: ServerStage) -> None:
    """Anything else, or a second HELLO, closes with 4400."""
    peer = await stage.connect()
    await peer.say_raw(_raw(stage, Bye()))
    code = await peer.closed()
    require(code == 4400, f"on BYE before HELLO it closed with {code}, not 4400")
    peer = await stage.greeted()
    await peer.say_raw(_raw(stage, Hello()))
    code = await peer.closed()
    require(code == 4400, f"on a second HELLO it closed with {code}, not 4400")


@check("Opening", is_long=True)
async def server_does_not_wait_for_hello_for_ever(stage: ServerStage) -> None:
    """Without HELLO it closes with 4408 after 5 s."""
    peer = await stage.connect()
    code = await peer.closed()
    require(code == 4408, f"it closed with {code}, not 4408")


@check("Frames", subprotocols=EVERY)
async def server_answers_whole(stage: ServerStage) -> None:
    """ACCEPTED, frames without holes whose text is the answer, and a FLUSH with its digest ends it."""
    for durability in (Durability.COMMITTED, Durability.NONE):
        peer = await stage.greeted()
        accepted = await peer.begin(_PROMPT, durability=durability)
        require(accepted.durability is durability, f"it was asked for {durability}")
        frames = await peer.frames(accepted.stream_id)  # the rules look at ids, offsets, epoch and digest
        require(text_of(frames) == _TEXT, f"the text is {text_of(frames)!r}")
        require(_finish(frames[-1]) is FinishReason.STOP, f"it ended with {frames[-1]}")


@check("Messages", subprotocols=EVERY)
async def server_checks_in_before_the_end(stage: ServerStage) -> None:
    """A committed stream has a CHECKPOINT before its end; each digest is that of the text at its frame."""
    peer = await stage.greeted()
    accepted = await peer.begin("one |two |three")
    text, digests, checkpoints = "", {0: hashlib.sha256(b"").digest()[:16]}, 0
    while True:
        event = await peer.hear()
        if isinstance(event, Delta):
            text += event.text
            digests[event.id] = hashlib.sha256(text.encode()).digest()[:16]
        elif isinstance(event, Checkpoint):
            checkpoints += 1
            for stream in event.streams:
                wanted = digests.get(stream.frame_id, stream.digest)
                require(stream.digest == wanted, f"the digest at frame {stream.frame_id} is wrong")
        elif isinstance(event, Flush | Error) and _finish(event) is not None:
            break
    require(checkpoints and accepted.stream_id, "no CHECKPOINT came before the end")


@check("Flow control", subprotocols=EVERY)
async def server_keeps_to_the_window(stage: ServerStage) -> None:
    """With nothing acknowledged it stops at 32 frames of a stream; an ACK sets it going again."""
    peer = await stage.greeted()
    accepted = await peer.begin("|".join(f"{number} " for number in range(200)))
    text, last_id = await _until_silence(peer)
    require(last_id <= 32, f"frame {last_id} came, and nothing was acknowledged")
    await peer.acknowledge(accepted.stream_id, last_id)
    frames = await peer.frames(accepted.stream_id)
    whole = "".join(f"{number} " for number in range(200))
    require(text + text_of(frames) == whole, "a piece is missing, or there twice")


async def _until_silence(peer: ServerPeer) -> tuple[str, int]:
    text, last_id = "", 0
    while True:
        with trio.move_on_after(0.5) as patience:
            event = await peer.hear()
        if patience.cancelled_caught:
            return text, last_id
        if isinstance(event, FRAMES):
            last_id = event.id
            text += event.text if isinstance(event, Delta) else ""


@check("Messages", subprotocols=EVERY)
async def server_refuses_an_ack_of_what_was_not_sent(stage: ServerStage) -> None:
    """An ACK above the last frame sent, or of a stream that never began, closes with 4400."""
    peer = await stage.greeted()
    accepted = await peer.begin("one |two")
    frames = await peer.frames(accepted.stream_id)
    wrong = Ack(processed=((accepted.stream_id, frames[-1].id + 1),))
    await peer.say_raw(_raw(stage, wrong))
    code = await peer.closed()
    require(code == 4400, f"it closed with {code}, not 4400")
    peer = await stage.greeted()
    await peer.say_raw(_raw(stage, Ack(processed=((99, 1),))))
    code = await peer.closed()
    require(code == 4400, f"on a stream that never began it closed with {code}, not 4400")


@check("Messages", subprotocols=EVERY)
async def server_counts_the_clients_messages(stage: ServerStage) -> None:
    """A sequence id that is not the next one closes with 4400."""
    for wrong in (2, 7):
        peer = await stage.greeted()
        submit = Submit(sequence_id=wrong, idempotency_key=bytes(16), prompt="x")
        await peer.say_raw(_raw(stage, submit))
        code = await peer.closed()
        require(code == 4400, f"on number {wrong} for the first it closed with {code}, not 4400")


@check("Messages", subprotocols=EVERY)
async def server_refuses_an_unsound_request_by_field(stage: ServerStage) -> None:
    """REFUSED, `invalid_request`, and the name of the field; the connection serves the next one."""
    peer = await stage.greeted()
    for field in ("idempotency_key", "messages"):
        await peer.say_raw(_unsound(peer, field))
        refused = await peer.expect(Refused)
        told = (refused.code, refused.field)
        require(told == (ErrorCode.INVALID_REQUEST, field), f"for {field} it says {told}")
    accepted = await peer.begin("fine")
    require(text_of(await peer.frames(accepted.stream_id)) == "fine", "the next answer is another")


def _unsound(peer: ServerPeer, field: str) -> bytes | str:
    """A SUBMIT that lacks one thing, and counts as said."""
    sequence_id = peer.connection.next_sequence_id
    submit = Submit(sequence_id=sequence_id, idempotency_key=sequence_id.to_bytes(16), prompt="x")
    sound = peer.connection.send(submit)
    if isinstance(sound, bytes):
        envelope = pb.ClientEnvelope.FromString(sound)
        envelope.submit.ClearField("prompt" if field == "messages" else "idempotency_key")
        return envelope.SerializeToString()
    members = json.loads(sound)
    if field == "messages":
        del members["prompt"]
    else:
        members["idempotency_key"] = "00"
    return json.dumps(members)


@check("Sessions", subprotocols=EVERY)
async def server_starts_one_generation_for_a_key(stage: ServerStage) -> None:
    """The same request again: ACCEPTED, replayed, the same stream. Another under its key: a mismatch."""
    peer = await stage.greeted()
    submit = await peer.submit("one |two")
    accepted = await peer.accepted(submit)
    await peer.frames(accepted.stream_id)
    again = await peer.submit("one |two", idempotency_key=submit.idempotency_key)
    replayed = await peer.accepted(again)
    same = (replayed.replayed, replayed.stream_id)
    require(same == (True, accepted.stream_id), f"it was answered with {replayed}")
    other = await peer.submit("another", idempotency_key=submit.idempotency_key)
    refused = await peer.expect(Refused)
    told = (refused.sequence_id, refused.code)
    require(told == (other.sequence_id, ErrorCode.IDEMPOTENCY_MISMATCH), f"it says {refused}")


@check("Messages", subprotocols=EVERY)
async def server_cancels(stage: ServerStage) -> None:
    """CANCEL ends its stream with `cancelled`; a second one, and one after the end, do nothing."""
    peer = await stage.greeted()
    accepted = await peer.begin("|".join("x" * 150))
    for _ in range(2):
        await peer.say(Cancel(sequence_id=peer.connection.next_sequence_id, stream_id=accepted.stream_id))
    frames = await peer.frames(accepted.stream_id)
    require(_finish(frames[-1]) is FinishReason.CANCELLED, f"it ended with {frames[-1]}")
    await peer.say(Cancel(sequence_id=peer.connection.next_sequence_id, stream_id=accepted.stream_id))
    accepted = await peer.begin("fine")
    require(text_of(await peer.frames(accepted.stream_id)) == "fine", "the next answer is another")


@check("Close codes", subprotocols=EVERY)
async def server_closes_on_what_is_no_message(stage: ServerStage) -> None:
    """What is no envelope: 4400; the other kind of WebSocket message: 1003; one over the limit: 1009."""
    binary = stage.subprotocol == "seedance.v1"
    junk: bytes | str = b"\xff\xff" if binary else "{no message"
    other: bytes | str = "text" if binary else b"binary"
    peer = await stage.greeted()
    too_long = "x" * (peer.welcome.limits.max_message_bytes + 1)
    await peer.close()
    for payload, wanted in ((junk, 4400), (other, 1003), (too_long.encode() if binary else too_long, 1009)):
        peer = await stage.greeted()
        await peer.say_raw(payload)
        code = await peer.closed()
        require(code == wanted, f"it closed with {code}, not {wanted}")


@check("Versions", subprotocols=EVERY)
async def server_skips_fields_that_it_does_not_know(stage: ServerStage) -> None:
    """Fields of later minor versions are skipped, in HELLO and, under protobuf, in SUBMIT."""
    peer = await stage.connect()
    say = peer.connection.send
    peer.connection.send = lambda *messages: _of_the_future(say(*messages))  # type: ignore[method-assign]
    await peer.greet()
    accepted = await peer.begin("fine")
    require(text_of(await peer.frames(accepted.stream_id)) == "fine", "the answer is another")


def _of_the_future(payload: bytes | str) -> bytes | str:
    """The same message with a field that no version has yet."""
    if isinstance(payload, bytes):
        envelope = pb.ClientEnvelope.FromString(payload)
        inner = getattr(envelope, str(envelope.WhichOneof("message")))
        inner.MergeFromString(b"\xfa\xff\x01\x03new")  # field 4095, of three bytes
        return envelope.SerializeToString()
    members = json.loads(payload)
    return payload if members["type"] == "submit" else json.dumps(members | {"of_the_future": {"x": [1]}})


@check("Encodings", subprotocols=("seedance.v1.json", "seedance.v1.raw"))
async def server_refuses_a_misspelt_parameter(stage: ServerStage) -> None:
    """A member that a SUBMIT in JSON does not have is refused by its name."""
    peer = await stage.greeted()
    submit = Submit(sequence_id=1, idempotency_key=bytes(16), prompt="x")
    sound = peer.connection.send(submit)
    await peer.say_raw(json.dumps(json.loads(sound) | {"temprature": 1}))
    refused = await peer.expect(Refused)
    require(refused.field == "temprature", f"it says {refused}")


@check("Signs of life", subprotocols=EVERY)
async def server_answers_a_heartbeat(stage: ServerStage) -> None:
    """A ping is answered by the pong that RFC 6455 demands, with the same three bytes."""
    peer = await stage.greeted()
    await peer.answers_ping(b"SD\x07")


@check("Close codes", subprotocols=EVERY)
async def server_closes_after_goodbye(stage: ServerStage) -> None:
    """BYE is answered by a close with 1000."""
    peer = await stage.greeted()
    await peer.say(Bye())
    code = await peer.closed()
    require(code == 1000, f"it closed with {code}, not 1000")


@check("Messages", subprotocols=EVERY, feature="events")
async def server_keeps_events(stage: ServerStage) -> None:
    """An EVENT is answered by a CHECKPOINT that covers it."""
    peer = await stage.greeted()
    event = UserEvent(timestamp=1_735_689_600_000, user_id=-7, action="click", payload=b"\x00\xff")
    later = evolve(event, timestamp=event.timestamp + 5)
    await peer.say(Event(sequence_id=1, batch_id=1, events=(event, later)))
    covered = 0
    while covered < 1:
        covered = (await peer.expect(Checkpoint, ())).sequence_id
    welcome = await _back(stage, peer)
    require(welcome.last_sequence_id == 1, f"it has the client's messages up to {welcome.last_sequence_id}")


async def _back(stage: ServerStage, peer: ServerPeer) -> Welcome:
    await peer.cut()
    return (await stage.greeted(peer.welcome)).welcome


@check("Messages", subprotocols=EVERY)
async def server_serves_many_streams_at_once(stage: ServerStage) -> None:
    """Streams of one connection go on side by side, each with its own numbering."""
    peer = await stage.greeted()
    wanted = {f"{number} one {number} two": f"{number} |one |{number} |two" for number in range(5)}
    for prompt in wanted.values():
        await peer.submit(prompt)
    texts: dict[int, str] = {}
    ended = 0
    while ended < len(wanted):
        event = await peer.hear()
        if isinstance(event, Delta):
            texts[event.stream_id] = texts.get(event.stream_id, "") + event.text
        ended += isinstance(event, Flush | Error) and _finish(event) is not None
    require(sorted(texts.values()) == sorted(wanted), f"the texts are {texts}")
