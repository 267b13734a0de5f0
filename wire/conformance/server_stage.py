"""What a check of a server stands on: the server under test, and clients that say what the check wants.

The model of a server under test answers a prompt with the prompt itself, in pieces that end where a bar
stands in it: ``"Hel|lo"`` is answered with ``"Hel"`` and ``"lo"``.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import trio
from trio_websocket import HandshakeError, WebSocketConnection, wrap_client_stream

from conformance.peer import ALONGSIDE, CheckFailed, Closed, CutStream, Peer, is_last, require
from conformance.subject import Subject
from seedance_wire.connection import Connection
from seedance_wire.cursor import ReceiveCursor
from seedance_wire.messages import (
    Accepted,
    Ack,
    Delta,
    Durability,
    Error,
    Flush,
    Hello,
    Resume,
    Resumed,
    ResumeRejected,
    Submit,
    Welcome,
)
from seedance_wire.running_digest import RunningDigest
from seedance_wire.state import Role

__all__ = ["FRAMES", "ServerPeer", "ServerStage", "server_stage"]

FRAMES = (Delta, Flush, Error)


class ServerPeer(Peer):
    """A client's end of a connection."""

    welcome: Welcome

    async def greet(self, former: Welcome | None = None, *, streams: int = 0, **hello: Any) -> Welcome:
        """Says HELLO, to come back to the session of a former WELCOME if there is one, and takes WELCOME."""
        if former is not None:
            self.connection.know_streams(streams)
            hello |= {"session_id": former.session_id, "resume_token": former.resume_token}
        await self.say(Hello(sdk_name="conformance", **hello))
        self.welcome = await self.expect(Welcome, ())
        return self.welcome

    async def submit(self, prompt: str, **more: Any) -> Submit:
        """Asks for an answer, under a new key unless one is given."""
        fields: dict[str, Any] = {
            "sequence_id": self.connection.next_sequence_id,
            "idempotency_key": secrets.token_bytes(16),
            "prompt": prompt,
            "durability": Durability.COMMITTED,
        }
        submit = Submit(**(fields | more))
        await self.say(submit)
        return submit

    async def accepted(self, submit: Submit) -> Accepted:
        """Takes the answer to a SUBMIT, which must be that it is accepted."""
        accepted = await self.expect(Accepted, (*ALONGSIDE, *FRAMES))
        wanted, got = submit.sequence_id, accepted.sequence_id
        require(got == wanted, f"ACCEPTED for number {got}, where {wanted} was asked")
        return accepted

    async def begin(self, prompt: str, **more: Any) -> Accepted:
        """Asks for an answer and takes ACCEPTED."""
        return await self.accepted(await self.submit(prompt, **more))

    async def acknowledge(self, stream_id: int, frame_id: int) -> None:
        """Says that frames up to this one were taken."""
        await self.say(Ack(processed=((stream_id, frame_id),)))

    async def frames(self, stream_id: int, *, acknowledge: bool = True) -> list[Delta | Flush | Error]:
        """Reads one stream to its end, acknowledging as it comes."""
        frames: list[Delta | Flush | Error] = []
        while not frames or not is_last(frames[-1]):
            event = await self.hear()
            if isinstance(event, FRAMES) and event.stream_id == stream_id:
                frames.append(event)
                if acknowledge and len(frames) % 8 == 0:
                    await self.acknowledge(stream_id, event.id)
            elif not isinstance(event, (*ALONGSIDE, *FRAMES)):
                raise CheckFailed(f"a frame was due, {type(event).__name__} came")
        return frames

    async def resume(
        self, stream_id: int, applied: int, text: str, *, digest: bytes | None = None
    ) -> Resumed | ResumeRejected:
        """Asks for what follows a frame, up to which the text is this; takes the answer."""
        known = RunningDigest()
        known.update(text.encode())
        self.connection.know_position(stream_id, ReceiveCursor(1, applied, len(text.encode())), known)
        said = known.prefix if digest is None else digest
        await self.say(Resume(stream_id=stream_id, last_processed_id=applied, digest=said))
        answer = await self.expect_any((Resumed, ResumeRejected))
        assert isinstance(answer, Resumed | ResumeRejected)
        return answer

    async def expect_any(self, kinds: tuple[type, ...]) -> object:
        """Takes the next message of one of these kinds; frames and what may come at any moment pass by."""
        while not isinstance(event := await self.hear(), kinds):
            if not isinstance(event, (*ALONGSIDE, *FRAMES)):
                raise CheckFailed(f"{type(event).__name__} came: {event}")
        return event


class ServerStage:
    """See above."""

    def __init__(self, subject: Subject, url: str, api_key: str | None) -> None:
        self.subject = subject
        self._api_key = api_key
        self.subprotocol = "seedance.v1"
        self._nursery: trio.Nursery
        self._streams: list[trio.abc.Stream] = []
        self._note(url)

    def _note(self, url: str) -> None:
        parts = urlsplit(url)
        require(parts.scheme == "ws" and parts.hostname and parts.port, f"{url!r} is no ws://host:port/path")
        self._host, self._port, self._path = parts.hostname or "", parts.port or 0, parts.path or "/"

    @asynccontextmanager
    async def speaking(self, subprotocol: str) -> AsyncIterator[ServerStage]:
        """The same, for one check under this subprotocol; its connections end with it."""
        try:
            async with trio.open_nursery() as nursery:
                self.subprotocol, self._nursery = subprotocol, nursery
                nursery.start_soon(self.subject.watch)
                yield self
                nursery.cancel_scope.cancel()
        finally:
            while self._streams:
                await trio.aclose_forcefully(self._streams.pop())

    async def restart(self) -> None:
        """Has the server killed and started again with what it had stored."""
        self._note(str((await self.subject.ask("restart")).get("url")))

    async def connect(self, cut_after: int | None = None) -> ServerPeer:
        """Opens a connection.

        Args:
            cut_after: Cut it once so many bytes have come, those of the upgrade included.

        Raises:
            Closed: It was cut before it was open.
        """
        stream = CutStream(await trio.open_tcp_stream(self._host, self._port), receive_bytes=cut_after)
        self._streams.append(stream)
        websocket: WebSocketConnection | None = None
        headers = [] if self._api_key is None else [(b"Authorization", f"Bearer {self._api_key}".encode())]
        async with trio.open_nursery() as race:  # the library would wait for ever where the answer is cut

            async def give_up() -> None:
                await stream.ended.wait()
                race.cancel_scope.cancel()

            race.start_soon(give_up)
            try:
                websocket = await wrap_client_stream(
                    self._nursery,
                    stream,  # type: ignore[arg-type]  # any stream will do
                    f"{self._host}:{self._port}",
                    self._path,
                    subprotocols=[self.subprotocol],
                    extra_headers=headers,
                )
            except HandshakeError as error:
                raise CheckFailed(f"it refused the connection: {error!r}") from None
            race.cancel_scope.cancel()
        if websocket is None:
            raise Closed(1006, "in the upgrade")
        got = websocket.subprotocol
        require(got == self.subprotocol, f"it took the subprotocol {got}, not {self.subprotocol}")
        return ServerPeer(websocket, Connection(Role.CLIENT, self.subprotocol), stream)

    async def greeted(self, former: Welcome | None = None, *, streams: int = 0) -> ServerPeer:
        """Opens a connection and greets."""
        peer = await self.connect()
        await peer.greet(former, streams=streams)
        return peer

    async def upgrade(self, subprotocols: Sequence[str]) -> tuple[int, dict[str, str]]:
        """Asks for an upgrade by hand; returns the status and the headers, in lower case, of the answer."""
        stream = await trio.open_tcp_stream(self._host, self._port)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        head = [
            f"GET {self._path} HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: {', '.join(subprotocols)}",
            *([] if self._api_key is None else [f"Authorization: Bearer {self._api_key}"]),
        ]
        async with stream:
            await stream.send_all("\r\n".join([*head, "", ""]).encode())
            answer = b""
            while b"\r\n\r\n" not in answer and (data := await stream.receive_some()):
                answer += data
        status, *lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def server_stage(subject: Subject) -> ServerStage:
    """Has the server started."""
    started = await subject.ask("serve")
    return ServerStage(subject, str(started.get("url")), started.get("api_key"))
