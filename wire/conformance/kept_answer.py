"""A server that keeps what it says, for a client to be cut off from: one session, its requests, its frames.

Each connection is served by `serve` until it ends, however it ends; the next one goes on with what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from conformance.client_stage import ClientStage, answer
from conformance.peer import Closed, Peer
from seedance_wire.messages import (
    Accepted,
    Ack,
    Bye,
    Durability,
    Hello,
    Resume,
    Resumed,
    Submit,
)

__all__ = ["KeptAnswer"]


class KeptAnswer:
    """Answers one request, over as many connections as it takes.

    Args:
        stage: What it stands on.
        pieces: The answer.

    Attributes:
        keys: The idempotency key of each SUBMIT that came.
        resumes: The position of each RESUME that came.
        hellos: Each HELLO that came.
        acknowledged: The highest frame acknowledged.
        is_done: Whether BYE came.
    """

    def __init__(self, stage: ClientStage, pieces: Sequence[str]) -> None:
        self._stage = stage
        self._pieces = pieces
        self.keys: list[bytes] = []
        self.resumes: list[int] = []
        self.hellos: list[Hello] = []
        self.acknowledged = 0
        self.is_done = False

    async def serve(self, cut_after: int | None = None) -> None:
        """Serves the client's next connection until it ends."""
        try:
            peer = await self._stage.arrival(cut_after)
            self.hellos.append(await self._stage.greet(peer))
            while not self.is_done:
                await self._act(peer)
            await peer.close()
        except Closed:
            pass

    async def _act(self, peer: Peer) -> None:
        match await peer.hear():
            case Submit() as submit:
                await self._submitted(peer, submit)
            case Resume() as resume:
                await self._resumed(peer, resume)
            case Ack() as ack:
                self.acknowledged = max(self.acknowledged, dict(ack.processed).get(1, 0))
            case Bye():
                self.is_done = True
            case _:
                pass

    async def _submitted(self, peer: Peer, submit: Submit) -> None:
        self._stage.last_sequence_id = max(self._stage.last_sequence_id, submit.sequence_id)
        replayed = submit.idempotency_key in self.keys
        self.keys.append(submit.idempotency_key)
        self._stage.streams = 1
        last_id = len(self._pieces) + 1 if replayed else 0
        await peer.say(
            Accepted(
                sequence_id=submit.sequence_id,
                stream_id=1,
                durability=Durability.COMMITTED,
                replayed=replayed,
                last_id=last_id,
            )
        )
        if not replayed:
            await self._frames(peer, 0)

    async def _resumed(self, peer: Peer, resume: Resume) -> None:
        self.resumes.append(resume.last_processed_id)
        await peer.say(
            Resumed(
                stream_id=resume.stream_id,
                next_id=resume.last_processed_id + 1,
                epoch=self._stage.epoch,
                first_available_id=1,
                last_id=len(self._pieces) + 1,
                live=False,
            )
        )
        await self._frames(peer, resume.last_processed_id)

    async def _frames(self, peer: Peer, after_id: int) -> None:
        for frame in answer(1, self._pieces, self._stage.epoch)[after_id:]:
            await peer.say(evolve(frame, epoch=self._stage.epoch))
