"""The implementation under test: a process that takes commands as lines of JSON and answers them likewise.

Any number of commands may be under way; answers carry the number of their command. Every wait is bounded, and
the process never outlives the block that started it. It must not know what a command means.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

__all__ = ["Refusal", "Subject", "SubjectBroken", "running_subject"]

_END_S = 5.0
"""Time to end after its standard input was closed; then it is killed."""
_MAX_LINE_BYTES = 1_048_576


class SubjectBroken(Exception):  # noqa: N818 - what happened
    """The process ended, or said something that is no answer."""


class Refusal(Exception):  # noqa: N818 - an answer, often the wanted one
    """A command was answered with an error.

    Attributes:
        code: Its name in the protocol.
        text: What a `read` had read before.
    """

    def __init__(self, code: str, text: str, message: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code}: {message}")


class Subject:
    """The commands to one process."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._last_id = 0
        self._answers: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._over: str | None = None
        self._ended = trio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be answered."""
        return self._over is not None

    async def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Gives a command and waits for its answer. If cancelled, the answer is dropped when it comes.

        Raises:
            Refusal: The answer is an error.
            SubjectBroken: There will be none.
        """
        if self._over is not None:
            raise SubjectBroken(self._over)
        self._last_id += 1
        number = self._last_id
        sender, receiver = trio.open_memory_channel[dict[str, Any]](1)
        self._answers[number] = sender
        line = json.dumps({"id": number, "do": do, **arguments}) + "\n"
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(line.encode())
            answer = await receiver.receive()
        except (trio.BrokenResourceError, trio.EndOfChannel):
            raise SubjectBroken(self._over or f"it ended before it answered {do!r}") from None
        finally:
            self._answers.pop(number, None)
        if "error" in answer:
            error = answer["error"]
            raise Refusal(str(error.get("code")), str(error.get("text", "")), str(error.get("message", "")))
        ok = answer.get("ok")
        if not isinstance(ok, dict):
            raise SubjectBroken(f"its answer to {do!r} has neither an object 'ok' nor one 'error'")
        return ok

    async def watch(self) -> None:
        """Waits for the process to end.

        Raises:
            SubjectBroken: It has.
        """
        await self._ended.wait()
        raise SubjectBroken(self._over)

    async def read_answers(self) -> None:
        """Hands answers out until the process ends."""
        assert self._process.stdout is not None
        buffer = b""
        try:
            async for data in self._process.stdout:
                buffer += data
                *lines, buffer = buffer.split(b"\n")
                for line in filter(None, lines):
                    self._take(line)
                if len(buffer) > _MAX_LINE_BYTES:
                    self._over = f"it said a line of more than {_MAX_LINE_BYTES} bytes"
                    break
        except SubjectBroken as error:
            self._over = str(error)
        self._over = self._over or "its standard output ended"
        self._ended.set()
        for sender in self._answers.values():
            sender.close()

    def _take(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
            number = answer["id"]
        except (ValueError, KeyError, TypeError):
            raise SubjectBroken(f"it said what is no answer: {line[:200]!r}") from None
        if (sender := self._answers.get(number)) is not None:
            sender.send_nowait(answer)


@asynccontextmanager
async def running_subject(command: Sequence[str]) -> AsyncIterator[Subject]:
    """Runs the process inside the block; its standard error goes where ours does."""
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    async with trio.open_nursery() as nursery:
        subject = Subject(process)
        nursery.start_soon(subject.read_answers)
        try:
            yield subject
        finally:
            with trio.CancelScope(shield=True):
                assert process.stdin is not None
                await process.stdin.aclose()
                with trio.move_on_after(_END_S):
                    await process.wait()
                if process.poll() is None:
                    process.kill()
                    await process.wait()
            nursery.cancel_scope.cancel()
