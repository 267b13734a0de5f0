"""What a server must do when a connection is cut, a session is taken over, or it is killed itself."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import trio

from conformance.checks import EVERY, check
from conformance.peer import Closed, is_last, require, text_of
from conformance.server_stage import FRAMES, ServerPeer, ServerStage
from seedance_wire.codec import make_codec
from seedance_wire.messages import (
    Accepted,
    Delta,
    Durability,
    Hello,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    Welcome,
)

__all__ = ["cut_at"]

_PROMPT = "one |zwei |שלוש |四 |five |😀"
_CUT_S = 5.0
"""For one connection of an answer that is cut; ours take a fiftieth of it."""
_TEXT = _PROMPT.replace("|", "")


class _Reader:
    """A client that survives cuts: what it applied, and what it must ask for again."""

    def __init__(self, stage: ServerStage, capabilities: Sequence[str]) -> None:
        self._stage = stage
        self._capabilities = tuple(capabilities)
        self._welcome: Welcome | None = None
        self._stream_id = 0
        self._applied = 0
        self._key = secrets.token_bytes(16)
        self.text = ""
        self.is_done = False

    async def converse(self, cut_after: int | None) -> None:
        """One connection, until it is cut or all was read."""
        try:
            peer = await self._stage.connect(cut_after)
            streams = 1 if self._stream_id else 0
            welcome = await peer.greet(self._welcome, streams=streams, capabilities=self._capabilities)
            if self._welcome is not None:
                require(welcome.session_present, "the session is gone")
                require(welcome.epoch > self._welcome.epoch, "the epoch is no higher than before")
            self._welcome = welcome
            await self._ask(peer)
            while not self.is_done:
                self._take(await peer.hear())
            await peer.cut()  # a server has only so many connections
        except Closed as closed:
            require(closed.code == 1006, f"it closed with {closed.code}")

    async def _ask(self, peer: ServerPeer) -> None:
        if not self._stream_id:
            # Under its old number where the server has it, under the next one where it does not.
            assert self._welcome is not None
            number = self._welcome.last_sequence_id or peer.connection.next_sequence_id
            accepted = await peer.begin(_PROMPT, sequence_id=number, idempotency_key=self._key)
            self._stream_id = accepted.stream_id
            if not accepted.replayed:
                return
        answer = await peer.resume(self._stream_id, self._applied, self.text)
        require(isinstance(answer, Resumed), f"RESUME was answered with {answer}")

    def _take(self, event: object) -> None:
        if isinstance(event, FRAMES):
            self._applied = event.id
            self.text += event.text if isinstance(event, Delta) else ""
            self.is_done = is_last(event)


async def cut_at(stage: ServerStage, cut_after: int, capabilities: Sequence[str] = ()) -> bool:
    """One answer with a cut at this byte; returns whether the cut came at all."""
    reader = _Reader(stage, capabilities)
    for connection, cut in ((1, cut_after), (2, None)):
        with trio.move_on_after(_CUT_S) as patience:
            await reader.converse(cut)
        come_to_nothing = patience.cancelled_caught
        require(not come_to_nothing, f"cut at byte {cut_after} connection {connection} came to nothing")
        if connection == 1 and reader.is_done:
            return False
    require(reader.text == _TEXT, f"cut at byte {cut_after} the text is {reader.text!r}")
    return True


@check("Sessions", subprotocols=EVERY)
async def server_survives_a_cut_at_some_bytes(stage: ServerStage) -> None:
    """Cut at a few bytes: the session is there, and all frames come, each once, from where they broke off."""
    for cut_after in (100, 250, 333, 420, 500, 580):
        await cut_at(stage, cut_after)


@check("Sessions", is_long=True)
async def server_survives_a_cut_at_every_byte(stage: ServerStage) -> None:
    """Cut at byte n, for every n up to the last: all frames come, each once, from where they broke off."""
    cut_after = 1
    while await cut_at(stage, cut_after):
        cut_after += 1
    require(cut_after > 300, f"only {cut_after} bytes could be cut")


async def _finished(stage: ServerStage, prompt: str = _PROMPT) -> tuple[ServerPeer, Accepted]:
    """A session with one stream that has ended, all of it acknowledged; then its connection is cut."""
    peer = await stage.greeted()
    accepted = await peer.begin(prompt)
    frames = await peer.frames(accepted.stream_id)
    await peer.acknowledge(accepted.stream_id, frames[-1].id)
    await peer.cut()
    return peer, accepted


@check("Sessions", subprotocols=EVERY)
async def server_sends_a_finished_stream_again(stage: ServerStage) -> None:
    """RESUME of a stream that has ended, from the beginning: the same text, and then its end."""
    former, accepted = await _finished(stage)
    peer = await stage.greeted(former.welcome, streams=1)
    require(peer.welcome.session_present, "the session is gone")
    answer = await peer.resume(accepted.stream_id, 0, "")
    require(isinstance(answer, Resumed) and not answer.live, f"RESUME was answered with {answer}")
    require(text_of(await peer.frames(accepted.stream_id)) == _TEXT, "the text is another than before")


@check("Sessions", subprotocols=EVERY)
async def server_says_why_a_stream_cannot_go_on(stage: ServerStage) -> None:
    """Another text: `diverged`; a frame that never was: `cursor_ahead`; a stream: `not_found`."""
    former, accepted = await _finished(stage)
    peer = await stage.greeted(former.welcome, streams=1)
    one = accepted.stream_id
    answer = await peer.resume(one, 1, "one ", digest=bytes(16))
    require(_code(answer) is ResumeFailure.DIVERGED, f"on another text it says {answer}")
    answer = await peer.resume(one, 99, "one ")
    require(_code(answer) is ResumeFailure.CURSOR_AHEAD, f"on a frame that never was it says {answer}")
    await peer.say_raw(make_codec(stage.subprotocol).encode((Resume(stream_id=77, last_processed_id=0),)))
    # The rules let no client ask for what it cannot know, so the answer is read without them.
    unruled = await _unruled(peer, stage)
    require(_code(unruled) is ResumeFailure.NOT_FOUND, f"on a stream that never was it says {unruled}")


def _code(answer: object) -> ResumeFailure | None:
    return answer.code if isinstance(answer, ResumeRejected) else None


async def _unruled(peer: ServerPeer, stage: ServerStage) -> object:
    codec = make_codec(stage.subprotocol)
    while True:
        for message in codec.decode_server(await peer.websocket.get_message()):
            if isinstance(message, ResumeRejected | Resumed):
                return message


@check("Sessions", subprotocols=EVERY)
async def server_opens_a_session_by_its_token_alone(stage: ServerStage) -> None:
    """A wrong token, and a session that never was, look the same: a fresh session."""
    former, _ = await _finished(stage)
    for session_id, token in ((former.welcome.session_id, bytes(32)), ("never", former.welcome.resume_token)):
        peer = await stage.connect()
        await peer.say(Hello(session_id=session_id, resume_token=token))
        welcome = await peer.expect(Welcome, ())
        require(not welcome.session_present, "it let in who does not hold the token")
        require(welcome.session_id != former.welcome.session_id, "a session's name was given twice")


@check("Sessions", subprotocols=EVERY)
async def server_gives_a_session_to_the_newest(stage: ServerStage) -> None:
    """A second connection takes the session over; the first is closed with 4409."""
    peer = await stage.greeted()
    second = await stage.greeted(peer.welcome)
    require(second.welcome.session_present, "the session is gone")
    require(second.welcome.epoch > peer.welcome.epoch, "the epoch is no higher than before")
    code = await peer.closed()
    require(code == 4409, f"the first was closed with {code}, not 4409")


@check("Sessions", subprotocols=EVERY)
async def server_takes_a_repeated_message_once(stage: ServerStage) -> None:
    """After a cut a SUBMIT that it has comes again under its number and key: the same stream, replayed."""
    peer = await stage.greeted()
    submit = await peer.submit(_PROMPT)
    accepted = await peer.accepted(submit)
    await peer.frames(accepted.stream_id)
    await peer.cut()
    back = await stage.greeted(peer.welcome, streams=1)
    require(
        back.welcome.last_sequence_id == 1, f"it has messages up to {back.welcome.last_sequence_id}, not 1"
    )
    await back.say(submit)
    again = await back.accepted(submit)
    require((again.replayed, again.stream_id) == (True, accepted.stream_id), f"it was answered with {again}")


@check("Sessions", subprotocols=EVERY)
async def server_forgets_a_stream_of_no_durability_with_its_connection(stage: ServerStage) -> None:
    """Of a stream of durability `none` nothing comes after a cut: RESUME is rejected as `not_found`."""
    peer = await stage.greeted()
    accepted = await peer.begin("|".join("x" * 200), durability=Durability.NONE)
    await peer.cut()
    back = await stage.greeted(peer.welcome, streams=1)
    answer = await back.resume(accepted.stream_id, 0, "")
    require(
        isinstance(answer, ResumeRejected) and answer.code is ResumeFailure.NOT_FOUND,
        f"RESUME was answered with {answer}",
    )


@check("Sessions", feature="restart", subprotocols=EVERY)
async def server_survives_its_own_death(stage: ServerStage) -> None:
    """Killed in the middle of an answer and started again: the session is there, and so is all the text."""
    peer = await stage.greeted()
    text = "".join(f"{number} " for number in range(60))
    accepted = await peer.begin("|".join(f"{number} " for number in range(60)))
    applied, got = 0, ""
    while applied < 5:
        event = await peer.hear()
        if isinstance(event, Delta):
            applied, got = event.id, got + event.text
    await stage.restart()
    back = await stage.greeted(peer.welcome, streams=1)
    require(back.welcome.session_present, "the session is gone")
    require(back.welcome.epoch > peer.welcome.epoch, "the epoch is no higher than before")
    answer = await back.resume(accepted.stream_id, applied, got)
    require(isinstance(answer, Resumed), f"RESUME was answered with {answer}")
    rest = text_of(await back.frames(accepted.stream_id))
    require(got + rest == text, f"the text is {got + rest!r}")
