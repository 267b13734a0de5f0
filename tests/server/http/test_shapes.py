"""Tests of `seedance_server.http.shapes`."""

from seedance_server.http.answer_id import AnswerId, Kind
from seedance_server.http.shapes import Choice, Shape
from seedance_wire.messages import Delta, Final, FinishReason, StageTiming, TokenLogprob, Usage

LOGPROBS = (
    TokenLogprob(token_id=1, text="Hé", logprob=-0.5, top=((1, "Hé", -0.5), (2, "Ha", -1.0))),
    TokenLogprob(token_id=3, text="!", logprob=-0.1),
)
DELTA = Delta(stream_id=1, id=1, epoch=1, offset=4, text="Hé!", logprobs=LOGPROBS)


def shape(kind: Kind, **more: object) -> Shape:
    answer = AnswerId(kind, f"{kind.value}-1")
    return Shape(answer=answer, created_s=7, model="m", fingerprint=bytes(32), **more)


def final(prompt: int = 3, completion: int = 2) -> Final:
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=1)
    return Final(finish_reason=FinishReason.STOP, usage=usage, timing=StageTiming(), digest=b"")


def test_shape_of_a_chat_says_the_role_once() -> None:
    """With the first frame, be it the only one."""
    chat = shape(Kind.CHAT)
    piece = chat.delta(0, DELTA)
    assert piece["object"] == "chat.completion.chunk"
    assert piece["choices"][0]["delta"] == {"role": "assistant", "content": "Hé!"}
    later = Delta(stream_id=1, id=2, epoch=1, offset=4, text="x")
    assert chat.delta(0, later)["choices"][0]["delta"] == {"content": "x"}
    assert chat.finish(0, final(), is_first=True)["choices"][0]["delta"]["role"] == "assistant"
    assert chat.finish(0, final(), is_first=False)["choices"][0]["delta"] == {}
    assert "usage" not in piece
    assert shape(Kind.CHAT, with_usage=True).delta(0, DELTA)["usage"] is None


def test_shape_of_log_probabilities_is_that_of_each_endpoint() -> None:
    """Of chats with bytes; of texts in columns, with offsets in UTF-8 bytes."""
    chat = shape(Kind.CHAT).delta(0, DELTA)["choices"][0]["logprobs"]["content"]
    assert chat[0]["bytes"] == [72, 195, 169]
    assert [top["token"] for top in chat[0]["top_logprobs"]] == ["Hé", "Ha"]
    text = shape(Kind.TEXT).delta(0, DELTA)["choices"][0]["logprobs"]
    assert text["tokens"] == ["Hé", "!"]
    assert text["token_logprobs"] == [-0.5, -0.1]
    assert text["top_logprobs"] == [{"Hé": -0.5, "Ha": -1.0}, {}]
    assert text["text_offset"] == [4, 7]


def test_shape_of_a_whole_counts_each_prompt_once() -> None:
    """However many choices it has."""
    choices = [Choice(text=["a", "b"], final=final(prompt)) for prompt in (3, 3, 5, 5)]
    whole = shape(Kind.TEXT, prompts=2).whole(choices)
    assert [choice["text"] for choice in whole["choices"]] == ["ab"] * 4
    assert whole["usage"]["prompt_tokens"] == 8
    assert whole["usage"]["completion_tokens"] == 8
    assert whole["usage"]["total_tokens"] == 16
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
