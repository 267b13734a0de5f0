"""What a client must do when its connection is cut, its frames have gaps, or its session is gone."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import trio
from attrs import evolve
from trio_websocket import ConnectionClosed

from conformance.checks import BINARY, EVERY, check
from conformance.client_stage import ClientStage, answer
from conformance.kept_answer import KeptAnswer
from conformance.peer import Peer, require
from conformance.subject import Refusal
from seedance_wire.codec import make_codec
from seedance_wire.messages import (
    AckLevel,
    Checkpoint,
    Delta,
    ErrorCode,
    Event,
    GoAway,
    Refused,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    Submit,
)

__all__ = ["cut_at"]

_PIECES = ("one ", "zwei ", "שלוש ", "四 ", "five ", "😀")
_TEXT = "".join(_PIECES)
_CUT_S = 5.0
"""For one connection of an answer that is cut; ours take a hundredth of it."""
_KEYS = "SUBMITs of one request came with different keys: a cut would start it twice"


async def cut_at(stage: ClientStage, cut_after: int) -> bool:
    """One answer with a cut at this byte; returns whether the cut came at all.

    A client may report that its very first connection failed: then nothing may have been submitted.
    """
    await stage.anew()
    kept = KeptAnswer(stage, _PIECES)
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="Hello", durability="committed")
    where = f"cut at byte {cut_after}"
    connections = 0
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            try:
                await submitting.result()
            except Refusal as error:
                reported = error.code == "connection_lost" and not kept.keys
                require(reported, f"{where} the request failed: {error}")
                nursery.cancel_scope.cancel()
                return
            text = await stage.text()
            require(text == _TEXT, f"{where} the text is {text!r}")
            await stage.subject.ask("close")
            nursery.cancel_scope.cancel()  # one that has everything need not come back to say BYE

        nursery.start_soon(read)
        while not kept.is_done:
            connections += 1
            with trio.move_on_after(_CUT_S) as patience:
                await kept.serve(cut_after if connections == 1 else None)
            require(not patience.cancelled_caught, f"{where} connection {connections} came to nothing")
    require(len(set(kept.keys)) <= 1, f"{where}: {_KEYS}")
    require(connections <= 2, f"{where} it took {connections} connections")
    return connections > 1 or not kept.is_done


@check("Sessions", subprotocols=EVERY)
async def client_survives_a_cut_at_some_bytes(stage: ClientStage) -> None:
    """Cut at a few bytes: it comes back, and its application gets each piece once."""
    for cut_after in (1, 60, 200, 333, 420, 500):
        await cut_at(stage, cut_after)


@check("Sessions", is_long=True)
async def client_survives_a_cut_at_every_byte(stage: ClientStage) -> None:
    """Cut at byte n, for every n up to the last: it comes back, and its application gets each piece once."""
    cut_after = 1
    while await cut_at(stage, cut_after):
        cut_after += 1
    require(cut_after > 300, f"only {cut_after} bytes could be cut")


@check("Sessions", subprotocols=EVERY)
async def client_comes_back_to_its_session(stage: ClientStage) -> None:
    """After a cut HELLO names session and token, RESUME the last frame applied, with its digest."""
    peer = await stage.begun()
    frames = answer(1, _PIECES)
    await peer.say(*frames[:3])
    size = len("".join(_PIECES[:3]).encode())
    await stage.subject.ask("read", stream="a", bytes=size)
    await peer.cut()
    back = await stage.arrival()
    hello = await stage.greet(back)
    require(hello.session_id is not None, "HELLO names no session")
    resume = await _resume_of(back)
    require(resume.last_processed_id == 3, f"RESUME after frame {resume.last_processed_id}, not 3")
    digest = hashlib.sha256("".join(_PIECES[:3]).encode()).digest()[:16]
    require(resume.digest in (digest, None), "the digest of RESUME is not that of the text")
    await _go_on(stage, back, resume)
    rest = await stage.text()
    require(rest == "".join(_PIECES[3:]), f"the rest is {rest!r}")


async def _resume_of(peer: Peer) -> Resume:
    return await peer.expect(Resume)


async def _go_on(stage: ClientStage, peer: Peer, resume: Resume) -> None:
    after = resume.last_processed_id
    await peer.say(
        Resumed(
            stream_id=1,
            next_id=after + 1,
            epoch=stage.epoch,
            first_available_id=1,
            last_id=len(_PIECES) + 1,
            live=False,
        )
    )
    for frame in answer(1, _PIECES, stage.epoch)[after:]:
        await peer.say(frame)


@check("Sessions", subprotocols=EVERY)
async def client_submits_again_what_was_not_answered(stage: ClientStage) -> None:
    """A SUBMIT that was cut off comes again under its key, and under its number if the server has it."""
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="Hello", durability="committed")
    peer = await stage.greeted()
    first = await peer.expect(Submit)
    await peer.cut()
    stage.last_sequence_id = 1
    peer = await stage.greeted()
    again = await peer.expect(Submit)
    require(again.idempotency_key == first.idempotency_key, _KEYS)
    require(again.sequence_id == 1, f"the server has number 1, and it comes again as {again.sequence_id}")
    await peer.cut()
    stage.last_sequence_id = 0
    peer = await stage.greeted()
    again = await stage.accept(peer)
    require(again.idempotency_key == first.idempotency_key, _KEYS)
    await submitting.result()
    await peer.say(*answer(1, ("fine",), stage.epoch))
    require(await stage.text() == "fine", "the text is not the one that was sent")


@check("Apply rule", subprotocols=BINARY)
async def client_resumes_after_a_gap(stage: ClientStage) -> None:
    """A frame is missing: RESUME from the last applied, on the same connection; what crossed is dropped."""
    peer = await stage.begun()
    frames = answer(1, _PIECES)
    await peer.say(*frames[:2])
    await peer.say_raw(make_codec(stage.subprotocol).encode(frames[3:5]))
    resume = await _resume_of(peer)
    require(resume.last_processed_id == 2, f"RESUME after frame {resume.last_processed_id}, not 2")
    await peer.say_raw(make_codec(stage.subprotocol).encode(frames[5:6]))
    await _go_on(stage, peer, resume)
    require(await stage.text() == _TEXT, "the text is not the one that was sent")


@check("Sessions")
async def client_gives_up_on_gaps_without_progress(stage: ClientStage) -> None:
    """After three RESUMEs without a frame applied in between: close with 4400."""
    peer = await stage.begun()
    wrong = Delta(stream_id=1, id=9, epoch=1, offset=99, text="x")
    await peer.say_raw(make_codec(stage.subprotocol).encode((wrong,)))
    for _ in range(3):
        resume = await _resume_of(peer)
        require(resume.last_processed_id == 0, "it resumes from a frame that it cannot have")
        await peer.say(Resumed(stream_id=1, next_id=1, epoch=1, first_available_id=1, last_id=9, live=True))
        await peer.say_raw(make_codec(stage.subprotocol).encode((wrong,)))
    code = await peer.closed()
    require(code == 4400, f"it closed with {code}, not 4400")


@check("Sessions", subprotocols=EVERY)
async def client_tells_that_its_session_is_gone(stage: ClientStage) -> None:
    """`session_present` false: its unfinished streams are lost, and it says so; new requests are served."""
    peer = await stage.begun()
    await peer.say(answer(1, _PIECES)[0])
    await stage.subject.ask("read", stream="a", bytes=4)
    await peer.cut()
    peer = await stage.greeted(present=False)
    await stage.start("read", stream="a").refusal()
    submitting = stage.start("submit", stream="b", prompt="Hello", durability="committed")
    submit = await stage.accept(peer)
    require(submit.sequence_id == 1, f"in a fresh session the first number is {submit.sequence_id}")
    await submitting.result()
    await peer.say(*answer(1, ("fine",), stage.epoch))
    require(await stage.text("b") == "fine", "the text is not the one that was sent")


@check("Sessions", subprotocols=EVERY)
async def client_tells_why_a_stream_is_lost(stage: ClientStage) -> None:
    """RESUME_REJECTED is final: its code reaches the application, and the same RESUME never comes again."""
    peer = await stage.begun()
    await peer.say(answer(1, _PIECES)[0])
    await stage.subject.ask("read", stream="a", bytes=4)
    await peer.cut()
    peer = await stage.greeted()
    await _resume_of(peer)
    await peer.say(ResumeRejected(stream_id=1, code=ResumeFailure.TRUNCATED, first_available_id=5, last_id=6))
    lost = await stage.start("read", stream="a").refusal()
    require(lost.code == "truncated", f"it says {lost}")
    with trio.move_on_after(0.2):
        await peer.expect(Resume)
        require(False, "RESUME came again")


@check("Close codes")
async def client_never_fights_over_a_session(stage: ClientStage) -> None:
    """Closed with 4409: it tells its application and does not come back."""
    peer = await stage.begun()
    await peer.close(4409)
    superseded = await stage.start("read", stream="a").refusal()
    require(superseded.code == "superseded", f"it says {superseded}")
    await stage.nobody_comes(0.7)


@check("Close codes", subprotocols=EVERY)
async def client_moves_when_the_server_leaves(stage: ClientStage) -> None:
    """GOAWAY, then 1001: its streams go on until then, and on the next connection after it."""
    peer = await stage.begun()
    frames = answer(1, _PIECES)
    await peer.say(frames[0])
    await peer.say(GoAway(reason="tests", deadline_ms=1000))
    await peer.say(frames[1])
    await stage.subject.ask("read", stream="a", bytes=9)
    await peer.close(1001)
    peer = await stage.greeted()
    resume = await _resume_of(peer)
    require(resume.last_processed_id == 2, f"RESUME after frame {resume.last_processed_id}, not 2")
    await _go_on(stage, peer, resume)
    require(await stage.text() == "".join(_PIECES[2:]), "the text is not the one that was sent")


@check("Opening")
async def client_waits_where_there_is_no_room(stage: ClientStage) -> None:
    """503 with `Retry-After`: it comes back, and not before."""
    peer = await stage.begun()
    await peer.cut()
    request, _ = await stage.request()
    refused_at = trio.current_time()
    headers = [(b"Retry-After", b"1"), (b"Seedance-Error", b"overloaded")]
    await request.reject(503, extra_headers=headers, body=b"full")
    peer = await stage.greeted()
    waited = trio.current_time() - refused_at
    require(waited > 0.95, f"it came back after {waited:.2f} s, where 1 s was asked for")
    await _go_on(stage, peer, await _resume_of(peer))
    require(await stage.text() == _TEXT, "the text is not the one that was sent")


@check("Messages", subprotocols=EVERY, feature="report")
async def client_reports_until_it_is_covered(stage: ClientStage) -> None:
    """An EVENT comes again after a refusal and after a cut: under a new number, and its own batch id."""
    await stage.connect()
    event = {"timestamp": 1_735_689_600_000, "user_id": -7, "action": "click", "payload": "00ff"}
    reporting = stage.start("report", events=[event])
    peer = await stage.greeted()
    first = await peer.expect(Event)
    told = first.events[0]
    same = (told.timestamp, told.user_id, told.action, told.payload.hex()) == tuple(event.values())
    require(same and first.batch_id, f"this was not reported: {first}")
    await peer.say(
        Refused(
            sequence_id=first.sequence_id,
            code=ErrorCode.OVERLOADED,
            message="later",
            retryable=True,
            retry_after_ms=10,
        )
    )
    again = await peer.expect(Event)
    require(again == evolve(first, sequence_id=2), f"after a refusal came {again}")
    await peer.cut()
    stage.last_sequence_id = 2
    peer = await stage.greeted()
    again = await peer.expect(Event)
    require(again == evolve(first, sequence_id=3), f"after a cut came {again}")
    require(not reporting.is_done, "it says that the report is kept, which nobody told it")
    await peer.say(Checkpoint(sequence_id=3, timestamp_ms=0, ack_level=AckLevel.COMMITTED))
    await reporting.result()
    with trio.move_on_after(0.2):
        await peer.expect(Event)
        require(False, "it was covered, and came again")


@check("Opening")
async def client_gives_up_where_its_key_opens_nothing(stage: ClientStage) -> None:
    """401 is final: it tells its application and does not come back."""
    await stage.connect()
    submitting = stage.start("submit", stream="a", prompt="Hello", durability="committed")
    request, _ = await stage.request()
    with suppress(ConnectionClosed):  # the client may be faster
        await request.reject(401, body=b"no")
    await submitting.refusal()
    await stage.nobody_comes(0.5)
