"""OpenAI's own Python client, and LangChain's, against a server process: they get what they expect."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Annotated

import openai
import pydantic
import pytest
import trio
from langchain_openai import ChatOpenAI, OpenAI

from tests.faults.server_process import ServerProcess, numbers_server_here
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow

KEY = "s3cret-key-of-16+"
ASK = [{"role": "user", "content": "Count"}]


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose answers are the numbers from 0 on; its base URL."""
    directory = tmp_path_factory.mktemp("counting")
    journal = str(directory / "journal.db")
    with numbers_server_here(directory, "--api-key", KEY, "--journal", journal) as server:
        yield f"http://127.0.0.1:{server.port}/v1"


@pytest.fixture
def client(counting: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=counting, api_key=KEY, max_retries=0) as client:
        yield client


def test_openai_lists_models(client: openai.OpenAI) -> None:
    """One, by its name; others aren't found."""
    assert [model.id for model in client.models.list()] == ["numbers"]
    assert client.models.retrieve("numbers").owned_by == "seedance"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("meta/llama")


def test_openai_chats(client: openai.OpenAI) -> None:
    """Whole, with usage and the request's id."""
    answer = client.chat.completions.create(
        model="numbers", messages=ASK, max_completion_tokens=5, n=2, temperature=0.3, user="u", store=False
    )
    assert [choice.message.content for choice in answer.choices] == ["0 1 2 3 4 "] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 2
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 10)
    assert answer._request_id == answer.id


def test_openai_streams(client: openai.OpenAI) -> None:
    """Piece by piece; the usage behind the last one where it was asked for."""
    stream = client.chat.completions.create(
        model="numbers", messages=ASK, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks[:5]] == ["0 ", "1 ", "2 ", "3 ", "4 "]
    assert chunks[5].choices[0].finish_reason == "length"
    assert chunks[6].choices == []
    assert chunks[6].usage.total_tokens == 10
    assert len(chunks) == 7


def test_openai_completes(client: openai.OpenAI) -> None:
    """The older endpoint: several prompts, whole and streamed, 16 tokens unless said."""
    answer = client.completions.create(model="numbers", prompt=["a", "b"], max_tokens=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "0 1 "), (1, "0 1 ")]
    stream = client.completions.create(model="numbers", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream).split() == [str(number) for number in range(16)]


def test_openai_raises_what_it_would_raise(client: openai.OpenAI, counting: str) -> None:
    """Its exception classes are made of our statuses."""
    stranger = openai.OpenAI(base_url=counting, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=ASK)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(
            model="numbers", messages=ASK, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert unsupported.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model="numbers", messages=ASK, extra_body={"temprature": 1})
    assert unknown.value.code == "unknown_parameter"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="numbers", prompt="x" * 5000)
    assert long.value.code == "context_length_exceeded"
    headers = {"Idempotency-Key": "used twice"}
    client.completions.create(model="numbers", prompt="a", extra_headers=headers)
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(model="numbers", prompt="b", extra_headers=headers)


def test_openai_async_streams_many_at_once(counting: str) -> None:
    """Under asyncio, on one pool of connections."""

    async def one(client: openai.AsyncOpenAI, count: int) -> str:
        stream = await client.chat.completions.create(
            model="numbers", messages=ASK, max_tokens=count, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def many() -> list[str]:
        async with openai.AsyncOpenAI(base_url=counting, api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(one(client, count) for count in range(1, 17)))

    for count, text in enumerate(asyncio.run(many()), 1):
        assert text.split() == [str(number) for number in range(count)]


def test_openai_resumes_with_a_key_and_the_last_event(client: openai.OpenAI) -> None:
    """What its user has to do after a cut: the same call, with the id of the last event."""
    headers = {"Idempotency-Key": "a long answer"}

    def ask(**more: str) -> tuple[list[str], str]:
        pieces, last_id = [], ""
        with client.chat.completions.with_streaming_response.create(
            model="numbers", messages=ASK, max_tokens=50, stream=True, extra_headers={**headers, **more}
        ) as response:
            for line in response.iter_lines():
                if line.startswith("id: "):
                    last_id = line.removeprefix("id: ")
                pieces.append(line)
                if not more and last_id == "20":
                    break
        return pieces, last_id

    _, last_id = ask()
    rest, _ = ask(**{"Last-Event-ID": last_id})
    assert next(line for line in rest if line.startswith("id: ")) == "id: 21"
    assert rest[-2:] == ["data: [DONE]", ""]


def test_langchain_chats_and_streams(counting: str) -> None:
    """Whole, streamed, batched, under asyncio; and its older class."""
    model = ChatOpenAI(base_url=counting, api_key=KEY, model="numbers", max_tokens=5, max_retries=0)
    answer = model.invoke("Count")
    assert answer.content == "0 1 2 3 4 "
    assert answer.usage_metadata["output_tokens"] == 5
    assert answer.response_metadata["finish_reason"] == "length"
    assert "".join(chunk.content for chunk in model.stream("Count")) == "0 1 2 3 4 "
    assert [each.content for each in model.batch(["Count", "again"])] == ["0 1 2 3 4 "] * 2

    async def stream() -> str:
        return "".join([chunk.content async for chunk in model.astream([("system", "s"), ("human", "Hi")])])

    assert asyncio.run(stream()) == "0 1 2 3 4 "
    older = OpenAI(base_url=counting, api_key=KEY, model="numbers", max_tokens=3, max_retries=0)
    assert older.invoke("Count") == "0 1 2 "


class Person(pydantic.BaseModel):
    name: Annotated[str, pydantic.StringConstraints(max_length=8)]
    age: int = pydantic.Field(ge=0, le=99)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a real model, small and random; its base URL."""
    model = build_tiny_model("qwen2", tmp_path_factory.mktemp("model") / "tiny")
    directory = tmp_path_factory.mktemp("tiny")
    flags = ("--model-path", str(model), "--kv-memory", "4MiB", "--threads", "1")
    server = ServerProcess((*flags, "--journal", str(directory / "journal.db")), directory)
    try:
        server.start()
        trio.run(server.wait_ready)
        yield f"http://127.0.0.1:{server.port}/v1"
    finally:
        server.destroy()


def test_openai_samples_from_a_real_model(tiny: str) -> None:
    """Seed, logprobs, bias and stop have the effect that they have over a WebSocket."""
    with openai.OpenAI(base_url=tiny, api_key="none", max_retries=0) as client:

        def ask(**more: object) -> openai.types.chat.ChatCompletion:
            return client.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, **more)

        seeded = [ask(seed=7, n=2, extra_body={"ignore_eos": True}) for _ in range(2)]
        assert seeded[0].choices[0].message.content == seeded[1].choices[0].message.content
        assert seeded[0].choices[0].message.content != seeded[0].choices[1].message.content
        with_logprobs = ask(temperature=0, logprobs=True, top_logprobs=3)
        for entry in with_logprobs.choices[0].logprobs.content:
            assert len(entry.top_logprobs) == 3
            assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        best = with_logprobs.choices[0].logprobs.content[0]
        text = with_logprobs.choices[0].message.content
        streamed = list(ask(temperature=0, logprobs=True, top_logprobs=3, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text
        assert streamed[0].choices[0].logprobs.content[0] == best
        biased = ask(temperature=0, logit_bias={str(token): 100 for token in range(65, 66)})
        assert biased.choices[0].message.content != text
        stopped = ask(temperature=0, stop=[text[3:6]])
        assert stopped.choices[0].finish_reason == "stop"
        assert stopped.choices[0].message.content == text[: text.index(text[3:6])]
        with client.chat.completions.stream(
            model="tiny", messages=ASK, max_tokens=12, temperature=0, stop=[text[3:6]]
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == stopped.choices[0].message.content
        older = client.completions.create(model="tiny", prompt="a", max_tokens=4, logprobs=2, temperature=0)
        assert len(older.choices[0].logprobs.tokens) == 4
        assert older.choices[0].logprobs.text_offset[0] == 0


def test_openai_parses_what_a_real_model_says(tiny: str) -> None:
    """Even one without any sense: a schema, JSON, a regular expression, streamed as well."""
    with openai.OpenAI(base_url=tiny, api_key="none", max_retries=0) as client:
        answer = client.chat.completions.parse(
            model="tiny", messages=ASK, max_tokens=200, temperature=1.5, seed=1, response_format=Person
        )
        assert isinstance(answer.choices[0].message.parsed, Person)
        assert answer.choices[0].finish_reason == "stop"
        streamed = client.chat.completions.create(
            model="tiny",
            messages=ASK,
            max_tokens=200,
            temperature=1.5,
            seed=1,
            stream=True,
            extra_body={"guided_json": Person.model_json_schema()},
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
        assert Person.model_validate_json(text)
        code = client.completions.create(
            model="tiny", prompt="a", max_tokens=20, extra_body={"guided_regex": "[A-F]{2}-[0-9]{4}"}
        )
        assert re.fullmatch("[A-F]{2}-[0-9]{4}", code.choices[0].text)
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="tiny", prompt="a", extra_body={"guided_regex": "(a"})
        assert refused.value.param == "regex"
    model = ChatOpenAI(base_url=tiny, api_key="none", model="tiny", max_tokens=200, temperature=1.5, seed=2)
    assert isinstance(model.with_structured_output(Person, method="json_schema").invoke("Who?"), Person)
