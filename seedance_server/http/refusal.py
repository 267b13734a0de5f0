"""What an HTTP client is told that gets no answer: OpenAI's error object, and the status that goes with it.

One table says which status, type and code a fault has, for a request that is refused and for a stream that
fails on its way. Clients of OpenAI's make exceptions of the status and decide by it, and by ``Retry-After``
and ``x-should-retry``, whether to send the request again.

It must not know connections or how a fault came about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from attrs import define, field
from starlette.responses import Response

from seedance_server.errors import RequestRefused
from seedance_server.upgrade import ERROR_HEADER, HttpAnswer
from seedance_wire.messages import ErrorCode

__all__ = ["ERROR_HEADER", "Refusal", "http_refusal", "refusal_of_answer", "refusal_of_request"]

_INVALID = "invalid_request_error"
_SERVER = "server_error"
_FAULTS: Mapping[ErrorCode, tuple[int, str, str | None]] = {
    ErrorCode.INVALID_REQUEST: (400, _INVALID, None),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: (400, _INVALID, "context_length_exceeded"),
    ErrorCode.CAPACITY_EXCEEDED: (400, _INVALID, "capacity_exceeded"),
    ErrorCode.MODEL_NOT_FOUND: (404, _INVALID, "model_not_found"),
    ErrorCode.TEMPLATE_ERROR: (400, _INVALID, "template_error"),
    ErrorCode.UNSUPPORTED: (400, _INVALID, "unsupported_parameter"),
    ErrorCode.IDEMPOTENCY_MISMATCH: (422, _INVALID, "idempotency_mismatch"),
    ErrorCode.OVERLOADED: (503, _SERVER, "overloaded"),
    ErrorCode.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    ErrorCode.DRAINING: (503, _SERVER, "draining"),
    ErrorCode.DEADLINE_EXCEEDED: (504, _SERVER, "deadline_exceeded"),
    ErrorCode.JOURNAL_FULL: (503, _SERVER, "journal_full"),
    ErrorCode.FINGERPRINT_MISMATCH: (410, _INVALID, "fingerprint_mismatch"),
    ErrorCode.ABANDONED: (410, _INVALID, "abandoned"),
    ErrorCode.NUMERICAL_ERROR: (500, _SERVER, "numerical_error"),
    ErrorCode.ENGINE_FAILED: (503, _SERVER, "engine_failed"),
    ErrorCode.INTERNAL: (500, _SERVER, "internal_error"),
}
_STATUS_CODES = {
    401: "invalid_api_key",
    403: "origin_not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "overloaded",
}


@define(kw_only=True, eq=False)
class Refusal(Exception):  # noqa: N818 - a whole answer, that may be raised
    """An HTTP answer that isn't what was asked for.

    Attributes:
        status: The HTTP status.
        message: In words fit for the client.
        type: OpenAI's class of errors.
        code: Which one it is.
        param: The parameter at fault, if one is.
        retry_after_s: Set where the same request may succeed later.
        error_code: The protocol's word for it, where there is one.
        headers: More of the answer's headers.
    """

    status: int
    message: str
    type: str = _INVALID
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None
    error_code: ErrorCode | None = None
    headers: Mapping[str, str] = field(factory=dict)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object, as it stands in answers and in events."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        """The answer."""
        headers = {"x-should-retry": str(self.retry_after_s is not None).lower(), **self.headers}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.error_code is not None:
            headers[ERROR_HEADER] = self.error_code.value
        body = json.dumps(self.error, ensure_ascii=False)
        return Response(body, self.status, headers, media_type="application/json")


def http_refusal(
    code: ErrorCode, message: str, *, param: str | None = None, retry_after_ms: int | None = None
) -> Refusal:
    """The refusal for a fault that the protocol has a word for."""
    status, type_, name = _FAULTS[code]
    return Refusal(
        status=status,
        message=message,
        type=type_,
        code=name,
        param=param,
        retry_after_s=None if retry_after_ms is None else max(1, math.ceil(retry_after_ms / 1e3)),
        error_code=code,
    )


def refusal_of_request(refused: RequestRefused) -> Refusal:
    """The refusal for a request that was refused as a WebSocket's would be."""
    return http_refusal(
        refused.code, refused.reason, param=refused.field, retry_after_ms=refused.retry_after_ms
    )


def refusal_of_answer(answer: HttpAnswer) -> Refusal:
    """The same refusal as one line of text would be, for clients of the API."""
    headers = dict(answer.headers)
    retry_after = headers.pop("Retry-After", None)
    word = headers.pop(ERROR_HEADER, None)
    return Refusal(
        status=answer.status,
        message=answer.body,
        type=_SERVER if answer.status >= 500 else "rate_limit_error" if answer.status == 429 else _INVALID,
        code=word or _STATUS_CODES.get(answer.status),
        retry_after_s=None if retry_after is None else int(retry_after),
        error_code=None if word is None else ErrorCode(word),
        headers=headers,
    )
