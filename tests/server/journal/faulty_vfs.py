"""A way from SQLite to the disk that records, fills up and fails, and the disk after a power loss.

Every write, truncation, flush and deletion is recorded in order. From a part of the record `PowerLoss` builds
what a disk would hold if the power went there: what was flushed, and of the rest nothing, or a part chosen by
a seed, since a disk may write in any order what it wasn't told to flush.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import apsw
from attrs import Factory, define, field, frozen

__all__ = ["FaultyVfs", "PowerLoss", "Step", "io_error"]

_names = count()


@frozen
class Step:
    """One thing done to a file: ``write``, ``truncate``, ``sync`` or ``delete``."""

    kind: str
    file: str
    offset: int = 0
    data: bytes = field(default=b"", repr=False)


def io_error(code: int) -> apsw.IOError:
    """The exception that SQLite takes for an I/O error of this kind."""
    error = apsw.IOError("injected")
    error.extendedresult = code
    return error


class _File(apsw.VFSFile):
    def __init__(self, vfs: FaultyVfs, name: str, source: Any, flags: list[int]) -> None:
        super().__init__("", source, flags)
        self._vfs = vfs
        self._name = Path(name).name

    def excepthook(self, *_: object) -> None:
        """Injected errors reach SQLite as codes; nobody wants to read them too."""

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._vfs.enter(Step("write", self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._vfs.enter(Step("truncate", self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        # Nothing is flushed for real: what counts is the record, and the tests are quick.
        self._vfs.enter(Step("sync", self._name))


@define(eq=False, slots=False)
class FaultyVfs(apsw.VFS):
    """Registered while it is open; give its ``name`` to a journal.

    Attributes:
        capacity: Bytes that all files together may have.
        before: Called before each step, with its number from 0; what it raises SQLite gets.
        steps: The record.
        sizes: Of the files, as far as they were written.
    """

    capacity: Callable[[], float] = lambda: float("inf")
    before: Callable[[int, Step], None] = lambda number, step: None
    steps: list[Step] = Factory(list)
    sizes: dict[str, int] = Factory(dict)

    def __attrs_post_init__(self) -> None:
        self.name = f"faulty-{next(_names)}"
        super().__init__(self.name, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unregister()

    def excepthook(self, *_: object) -> None:
        """As for files."""

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name.filename() if isinstance(name, apsw.URIFilename) else name or "", name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.enter(Step("delete", Path(filename).name))
        super().xDelete(filename, syncdir)

    def enter(self, step: Step) -> None:
        """Lets a step happen, or not."""
        self.before(len(self.steps), step)
        size = self.sizes.get(step.file, 0)
        if step.kind == "write":
            grown = max(size, step.offset + len(step.data))
            if grown > size and sum(self.sizes.values()) - size + grown > self.capacity():
                raise apsw.FullError("injected")
            size = grown
        elif step.kind == "truncate":
            size = step.offset
        elif step.kind == "delete":
            size = 0
        self.sizes[step.file] = size
        self.steps.append(step)


@define
class PowerLoss:
    """The disk, as it follows a record step by step."""

    flushed: dict[str, bytearray] = Factory(dict)
    pending: dict[str, list[Step]] = Factory(dict)

    def follow(self, step: Step) -> None:
        """One step further."""
        if step.kind == "sync":
            for earlier in self.pending.pop(step.file, []):
                _apply(self.flushed.setdefault(step.file, bytearray()), earlier)
        elif step.kind == "delete":
            self.flushed.pop(step.file, None)
            self.pending.pop(step.file, None)
        else:
            self.pending.setdefault(step.file, []).append(step)

    def files(self, seed: int | None) -> dict[str, bytes]:
        """What is on the disk if the power goes now; a seed lets some unflushed steps through."""
        names = set(self.flushed) | set(self.pending)
        images = {name: bytearray(self.flushed.get(name, b"")) for name in sorted(names)}
        if seed is not None:
            choose = random.Random(seed)
            for name in sorted(self.pending):
                for step in self.pending[name]:
                    if choose.random() < 0.5:
                        _apply(images[name], step)
        return {name: bytes(image) for name, image in images.items()}


def _apply(image: bytearray, step: Step) -> None:
    if step.kind == "truncate":
        del image[step.offset :]
        return
    end = step.offset + len(step.data)
    image.extend(bytes(max(0, end - len(image))))
    image[step.offset : end] = step.data
