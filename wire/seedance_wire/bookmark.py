"""A place in a stream, small enough to be stored beside what an application made of the text up to there.

Whoever has it can go on with the stream from another process: it names the session with its token, which is
a secret, the stream, and how far it was taken. Its text form begins with a version, so that one stored today
can be told from one of tomorrow.
"""

from __future__ import annotations

import json

from attrs import field, frozen

from .errors import InvalidBookmarkError
from .json_fields import Fields
from .running_digest import PREFIX_BYTES
from .validity import InvalidFieldError

__all__ = ["Bookmark"]

_VERSION = "seedance-bookmark-1"
_MAX_CHARS = 4096
_MAX_TOKEN_BYTES = 256
_U64 = 2**64 - 1


@frozen(kw_only=True)
class Bookmark:
    """A place in a stream.

    Attributes:
        session_id: The session.
        resume_token: Its token. Whoever knows it, and may use the server, can take the session over.
        stream_id: The stream, as the server numbers it.
        last_processed_id: The last frame taken; 0 for none.
        offset: UTF-8 bytes of text up to its end.
        digest16: The first 16 bytes of the SHA-256 of that text, or None where its beginning was never seen.
    """

    session_id: str
    resume_token: bytes = field(repr=False)
    stream_id: int
    last_processed_id: int
    offset: int
    digest16: bytes | None

    def to_str(self) -> str:
        """Returns it as one line of text; `from_str` undoes it."""
        members = {
            "session_id": self.session_id,
            "resume_token": self.resume_token.hex(),
            "stream_id": self.stream_id,
            "last_processed_id": self.last_processed_id,
            "offset": self.offset,
            "digest": None if self.digest16 is None else self.digest16.hex(),
        }
        return f"{_VERSION} {json.dumps(members, separators=(',', ':'))}"

    @classmethod
    def from_str(cls, text: str) -> Bookmark:
        """Returns the bookmark that ``to_str`` wrote.

        Raises:
            InvalidBookmarkError: It did not.
        """
        version, _, members = text[: _MAX_CHARS + 1].partition(" ")
        if version != _VERSION or len(text) > _MAX_CHARS:
            raise InvalidBookmarkError("it is none, or one of another version")
        try:
            fields = Fields(json.loads(members))
            bookmark = cls(
                session_id=fields.text("session_id"),
                resume_token=fields.hexadecimal("resume_token"),
                stream_id=fields.integer("stream_id"),
                last_processed_id=fields.integer("last_processed_id"),
                offset=fields.integer("offset"),
                digest16=fields.optional_hexadecimal("digest"),
            )
            fields.close()
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, InvalidFieldError) else "it is damaged"
            raise InvalidBookmarkError(reason) from None
        bookmark._check()
        return bookmark

    def _check(self) -> None:
        digest = self.digest16
        if not (
            self.session_id.isprintable()
            and 1 <= len(self.resume_token) <= _MAX_TOKEN_BYTES
            and 1 <= self.stream_id <= _U64
            and 0 <= self.last_processed_id < _U64
            and 0 <= self.offset <= _U64
            and (digest is None or len(digest) == PREFIX_BYTES)
            and (self.last_processed_id or not self.offset)
        ):
            raise InvalidBookmarkError("a value is out of range")
