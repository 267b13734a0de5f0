"""Every Hypothesis strategy of the test suite but the engine's.

A message strategy makes any value that the protocol allows, so a field added to a message and not here is a
field without a test: `test_messages.py` compares the two.
"""

from __future__ import annotations

from typing import TypeVar

from attrs import fields
from hypothesis import strategies as st

from seedance_wire import messages as m
from seedance_wire.bookmark import Bookmark
from seedance_wire.envelope import CodedDelta, Pieces

U32 = 2**32 - 1
U64 = 2**64 - 1

u32 = st.integers(0, U32)
u64 = st.integers(0, U64)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
from_one = st.integers(1, U64)
finite = st.floats(allow_nan=False, allow_infinity=False)
any_float = st.floats()

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
"""Any Unicode text: no surrogates, everything else, unassigned and control characters too."""

line_texts = st.text(st.sampled_from("\n\r\t :ad\x00\u0085\u2028é😀"), max_size=30)
"""Texts that are hard on a format of lines."""

near_texts = st.text(st.sampled_from("שלוםпривет你好世界 a😀\u0301"), max_size=30)
"""Texts of scripts in which neighbouring code points are close, so that differences pay."""

code_points = st.integers(0, 0x10FFFF).filter(lambda c: not 0xD800 <= c < 0xE000)

_Value = TypeVar("_Value")


def optional(strategy: st.SearchStrategy[_Value]) -> st.SearchStrategy[_Value | None]:
    """None or a value."""
    return st.none() | strategy


def tuples_of(
    strategy: st.SearchStrategy[_Value], min_size: int = 0
) -> st.SearchStrategy[tuple[_Value, ...]]:
    """A short tuple of any length."""
    return st.lists(strategy, min_size=min_size, max_size=3).map(tuple)


# ---- client to server


def samplings(numbers: st.SearchStrategy[float] = finite) -> st.SearchStrategy[m.Sampling]:
    """Sampling parameters, sensible or not; `any_float` brings NaN and infinities, which JSON has not."""
    return st.builds(
        m.Sampling,
        **dict.fromkeys(("temperature", "top_p", "min_p"), optional(numbers)),
        **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), optional(numbers)),
        **dict.fromkeys(("top_k", "seed", "max_tokens", "min_tokens", "top_logprobs"), optional(i64)),
        stop=tuples_of(texts),
        stop_token_ids=tuples_of(i64),
        ignore_eos=st.booleans(),
        logit_bias=st.dictionaries(i64, numbers, max_size=3),
        logprobs=st.booleans(),
        **dict.fromkeys(("json_schema", "regex"), optional(texts)),
    )


chat_messages = st.builds(m.ChatMessage, role=texts, content=optional(texts), name=optional(texts))

inputs = st.one_of(
    st.fixed_dictionaries({"messages": tuples_of(chat_messages)}),
    st.fixed_dictionaries({"prompt": texts}),
    st.fixed_dictionaries({"token_ids": tuples_of(i64)}),
)
"""The one input of a SUBMIT, as keyword arguments."""

traceparents = st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True)


@st.composite
def submits(
    draw: st.DrawFn,
    sequence_ids: st.SearchStrategy[int] = from_one,
    numbers: st.SearchStrategy[float] = finite,
) -> m.Submit:
    """A SUBMIT that the wire accepts; whether a server likes its values is another matter."""
    return m.Submit(
        sequence_id=draw(sequence_ids),
        idempotency_key=draw(st.binary(min_size=16, max_size=64)),
        model=draw(optional(texts)),
        sampling=draw(st.just(m.Sampling()) | samplings(numbers)),
        durability=draw(optional(st.sampled_from(m.Durability))),
        deadline_ms=draw(optional(u64)),
        parse_special=draw(st.booleans()),
        continues=draw(optional(from_one)),
        on_disconnect=draw(st.sampled_from(m.OnDisconnect)),
        allow_fingerprint_change=draw(st.booleans()),
        traceparent=draw(optional(traceparents)),
        **draw(inputs),
    )


digest_prefixes = st.binary(min_size=16, max_size=16)
tokens = st.binary(min_size=1, max_size=256)
sessions = st.fixed_dictionaries({}) | st.fixed_dictionaries({"session_id": texts, "resume_token": tokens})
"""Of a HELLO: both or none, as keyword arguments."""

hellos = sessions.flatmap(
    lambda session: st.builds(
        m.Hello,
        minor_version=u32,
        sdk_name=texts,
        sdk_version=texts,
        capabilities=tuples_of(texts),
        **{name: st.just(value) for name, value in session.items()},
    )
)
cancels = st.builds(m.Cancel, sequence_id=from_one, stream_id=from_one)
resumes = st.integers(0, U64 - 1).flatmap(
    lambda last: st.builds(
        m.Resume,
        stream_id=from_one,
        last_processed_id=st.just(last),
        digest=optional(digest_prefixes),
        taken_id=optional(st.integers(0, last)),
    )
)
acks = st.builds(m.Ack, processed=tuples_of(st.tuples(from_one, from_one), min_size=1))
byes = st.just(m.Bye())
user_events = st.builds(m.UserEvent, timestamp=u64, user_id=i32, action=texts, payload=st.binary(max_size=9))
events = st.builds(
    m.Event, sequence_id=from_one, batch_id=from_one, events=tuples_of(user_events, min_size=1)
)


def client_messages(numbers: st.SearchStrategy[float] = finite) -> st.SearchStrategy[m.ClientMessage]:
    """Any message of a client's."""
    return st.one_of(hellos, submits(numbers=numbers), cancels, resumes, acks, events, byes)


# ---- server to client

limits = st.builds(
    m.Limits,
    max_message_bytes=from_one,
    max_streams=st.integers(1, U32),
    max_context_tokens=from_one,
    messages_per_second=st.floats(0, allow_infinity=False),
    message_burst=u32,
)
welcomes = st.builds(
    m.Welcome,
    **dict.fromkeys(("session_id", "model", "server_version"), texts),
    **dict.fromkeys(("last_sequence_id", "retention_ms", "resume_window_ms"), u64),
    epoch=from_one,
    limits=limits,
    minor_version=u32,
    capabilities=tuples_of(texts),
    resume_token=st.just(b"") | tokens,
    session_present=st.booleans(),
)
_available = {"first_available_id": from_one, "last_id": u64}
accepteds = st.builds(
    m.Accepted,
    sequence_id=from_one,
    stream_id=from_one,
    durability=st.sampled_from(m.Durability),
    replayed=st.booleans(),
    **_available,
)
resumeds = st.builds(
    m.Resumed, stream_id=from_one, next_id=from_one, epoch=from_one, live=st.booleans(), **_available
)
resume_rejecteds = st.builds(
    m.ResumeRejected, stream_id=from_one, code=st.sampled_from(m.ResumeFailure), **_available
)
checkpoints = st.builds(
    m.Checkpoint,
    sequence_id=u64,
    timestamp_ms=u64,
    ack_level=st.sampled_from(m.AckLevel),
    streams=tuples_of(
        st.builds(m.StreamCheckpoint, stream_id=from_one, frame_id=from_one, digest=digest_prefixes)
    ),
)
refuseds = st.builds(
    m.Refused,
    sequence_id=from_one,
    code=st.sampled_from(m.ErrorCode),
    message=texts,
    field=optional(texts),
    retryable=st.booleans(),
    retry_after_ms=optional(u64),
)
flows = st.builds(m.Flow, stream_id=from_one, action=st.sampled_from(m.FlowAction), window=u32)
statuses = st.builds(
    m.Status,
    stream_id=from_one,
    phase=st.sampled_from(m.Phase),
    position=optional(u32),
    **dict.fromkeys(("estimated_wait_ms", "tokens_done", "tokens_total"), optional(u64)),
)
goaways = st.builds(m.GoAway, reason=texts, reconnect_to=optional(texts), deadline_ms=optional(u64))

_number = st.floats(allow_nan=False)  # infinite is a log probability; NaN equals nothing, itself included
token_logprobs = st.builds(
    m.TokenLogprob,
    token_id=i64,
    text=texts,
    logprob=_number,
    top=tuples_of(st.tuples(i64, texts, _number)),
)
_numbering = {"stream_id": from_one, "id": from_one, "epoch": from_one, "offset": u32}
deltas = st.builds(
    m.Delta,
    **_numbering,
    text=texts | line_texts | near_texts,
    token_count=u32,
    logprobs=tuples_of(token_logprobs),
)
coded_deltas = st.builds(
    CodedDelta,
    **_numbering,
    difference=st.binary(max_size=30),
    token_count=u32,
    logprobs=tuples_of(token_logprobs),
)
usages = st.builds(m.Usage, prompt_tokens=u64, completion_tokens=u64, cached_tokens=u64)
timings = st.builds(m.StageTiming, **dict.fromkeys([f.name for f in fields(m.StageTiming)], _number))
finals = st.builds(
    m.Final,
    finish_reason=st.sampled_from(m.FinishReason),
    usage=usages,
    timing=timings,
    digest=st.binary(min_size=32, max_size=32),
    stop=st.one_of(st.none(), texts, i64),
)
flushes = st.builds(m.Flush, **_numbering, final=optional(finals))
errors = st.builds(
    m.Error,
    **_numbering,
    code=st.sampled_from(m.ErrorCode),
    message=texts,
    retryable=st.booleans(),
    retry_after_ms=optional(u64),
)
frames: st.SearchStrategy[m.Frame] = st.one_of(deltas, flushes, errors)


@st.composite
def _pieces(draw: st.DrawFn) -> Pieces:
    """As a codec takes it: whether the lists fit each other is the reader's business, but for the sizes."""
    sizes = draw(tuples_of(st.integers(0, 40)))
    data = draw(st.binary(min_size=0, max_size=80))
    if sizes:
        data = data.ljust(80)[: sum(size >> 1 for size in sizes)]
    return Pieces(
        number=draw(st.integers(0, 127)),
        stream_ids=draw(tuples_of(st.integers(0, 3) | u64)),
        data=data,
        sizes=sizes,
        token_counts=draw(tuples_of(u32)),
        frames=draw(tuples_of(frames | coded_deltas)),
    )


pieces_messages = _pieces()

compressible = st.binary(max_size=100) | st.builds(
    lambda part, times: part * times, st.binary(max_size=30), st.integers(0, 2000)
)
"""Bytes with and without anything to be gained."""
server_messages: st.SearchStrategy[m.ServerMessage] = st.one_of(
    *(welcomes, accepteds, refuseds, resumeds, resume_rejecteds, checkpoints, flows, statuses, goaways),
    frames,
)


@st.composite
def bookmarks(draw: st.DrawFn) -> Bookmark:
    """Any place in a stream; before the first frame there is no text."""
    last_processed_id = draw(st.integers(0, U64 - 1))
    return Bookmark(
        session_id=draw(st.text(st.characters(exclude_categories=["Cs", "C", "Z"]), min_size=1, max_size=30)),
        resume_token=draw(tokens),
        stream_id=draw(from_one),
        last_processed_id=last_processed_id,
        offset=draw(u64) if last_processed_id else 0,
        digest16=draw(optional(digest_prefixes)),
    )


# ---- encodings


def envelopes(
    messages: st.SearchStrategy[object], batched: st.SearchStrategy[object] = frames
) -> st.SearchStrategy[tuple[object, ...]]:
    """One message, or several frames."""
    return messages.map(lambda message: (message,)) | st.lists(batched, min_size=1, max_size=4).map(tuple)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)
"""Anything that JSON can hold, lone surrogates and NaN included."""


@st.composite
def chunked(draw: st.DrawFn, payload: bytes) -> list[bytes]:
    """The same bytes, cut anywhere."""
    cuts = sorted(draw(st.sets(st.integers(0, len(payload)), max_size=8)))
    return [payload[start:end] for start, end in zip([0, *cuts], [*cuts, len(payload)], strict=True)]


# ---- readers of streams

reader_plans = st.lists(
    st.tuples(
        st.lists(near_texts, max_size=40),  # the answer's pieces
        st.sampled_from(["read", "close", "drop", "cancel"]),  # how its reader leaves
        st.integers(0, 40),  # after so many chunks
        st.sampled_from([0.0, 0.001, 0.05]),  # how long the reader takes for each, in seconds
    ),
    min_size=1,
    max_size=6,
)

# ---- outages

outages = st.lists(
    st.tuples(st.sampled_from([1001, 1006, 1011, 1013, 429, 502, 503]), st.none() | st.integers(0, 20_000)),
    min_size=300,
    max_size=300,
)
"""What ends one attempt after the other: a close code or an HTTP status, with Retry-After in milliseconds."""
dice_rolls = st.floats(0, 1, exclude_max=True)


# ---- latency

durations = st.one_of(
    st.just(0.0),
    st.floats(-9, 8).map(lambda exponent: 10.0**exponent),
    st.floats(1e-9, 60),
)
"""Seconds, from a nanosecond to three years: tails heavier than any that a network has."""


# ---- endpoints

member_weights = st.dictionaries(texts, st.floats(0.01, 100), min_size=1, max_size=6)
"""Members of a rendezvous and their weights."""
