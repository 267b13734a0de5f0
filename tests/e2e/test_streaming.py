"""Server, wire and SDK together with a real forward pass: what an application reads is the model's answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from transformers import AutoModelForCausalLM, AutoTokenizer

from seedance_sdk import AsyncSeedanceClient, Completion
from seedance_sdk.errors import ContextLengthExceeded, InvalidRequest
from seedance_server.config import Config
from seedance_server.serve import serve
from seedance_server.served_model import load_served_model
from tests.tiny_models import KINDS, TinyKind, build_tiny_model

pytestmark = pytest.mark.slow

PROMPTS = (
    "The quick brown fox",
    "A model reads the prompt, computes keys",
    "numbers 0 1 2 3",
    "Größe, naïve café, 你好世界, 🚀 are",
    "question, answer, and the other words that a conversation is usually made of. " * 2,
)
SUBPROTOCOLS = ("seedance.v1", "seedance.v1.json", "seedance.v1.raw")


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind: TinyKind = request.param
    return build_tiny_model(kind, tmp_path_factory.mktemp(kind))


@asynccontextmanager
async def serving(model: Path, **settings: Any) -> AsyncIterator[str]:
    """A server on a free loopback port; yields its URL."""
    config = Config(model_path=str(model), port=0, threads=1, kv_memory_bytes=1 << 22, **settings)
    async with trio.open_nursery() as nursery:
        with trio.fail_after(30):
            url = await nursery.start(partial(serve, config, load_served_model, watch_signals=False))
        yield url
        nursery.cancel_scope.cancel()


async def in_parallel(*calls: Callable[[], Any]) -> list[Any]:
    """Runs all at once; results in order."""
    results: list[Any] = [None] * len(calls)

    async def run(index: int) -> None:
        results[index] = await calls[index]()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for index in range(len(calls)):
                nursery.start_soon(run, index)
    return results


def reference(model: Path, prompt: str, tokens: int) -> str:
    """What Transformers generates greedily for this prompt alone."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    stock = AutoModelForCausalLM.from_pretrained(model).eval()
    ids = tokenizer(prompt, return_tensors="pt")
    torch.set_num_threads(1)
    out = stock.generate(**ids, do_sample=False, max_new_tokens=tokens)
    return tokenizer.decode(
        out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True, clean_up_tokenization_spaces=False
    )


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
async def test_answers_equal_generate_when_all_stream_at_once(model: Path, subprotocol: str):
    """Neighbours in the batch, the encoding and the wire change nothing in what an application reads."""
    expected = [reference(model, prompt, 24) for prompt in PROMPTS]

    async def ask(client: AsyncSeedanceClient, prompt: str) -> tuple[str, Completion]:
        stream = await client.complete(prompt=prompt, temperature=0, max_tokens=24, stream=True)
        pieces = [chunk.delta async for chunk in stream]
        return "".join(pieces), await stream.collect()

    async with (
        serving(model, prefill_budget_tokens=16, max_sequences=4) as url,
        AsyncSeedanceClient(url, subprotocol=subprotocol) as client,
    ):
        answers = await in_parallel(*(partial(ask, client, prompt) for prompt in PROMPTS))
    for (joined, whole), text in zip(answers, expected, strict=True):
        assert joined == whole.text == text
        assert whole.usage.completion_tokens <= 24


async def test_seeded_sampling_is_the_same_alone_and_in_company(model: Path):
    """A sampled token depends on the request alone, never on who shares the batch (case 13)."""

    async def ask(client: AsyncSeedanceClient, prompt: str, seed: int) -> str:
        answer = await client.complete(prompt=prompt, temperature=0.9, top_p=0.95, seed=seed, max_tokens=20)
        return answer.text

    async with serving(model) as url, AsyncSeedanceClient(url) as client:
        alone = await ask(client, PROMPTS[0], 42)
        together = await in_parallel(
            partial(ask, client, PROMPTS[0], 42),
            *(partial(ask, client, prompt, 7) for prompt in PROMPTS[1:]),
        )
        assert together[0] == alone
        assert await ask(client, PROMPTS[0], 43) != alone


async def test_bad_requests_fail_alone_beside_a_running_stream(model: Path):
    """Cases 6 to 9: only the guilty request fails, with its field; the neighbour's text stays the same."""
    guilty: tuple[tuple[dict[str, Any], str], ...] = (
        ({"prompt": ""}, "prompt"),
        ({"prompt": " \n\t"}, "prompt"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [10**6]}, "token_ids"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
        ({"prompt": "a", "temperature": float("inf")}, "temperature"),
        ({"prompt": "a", "top_p": 0.0}, "top_p"),
        ({"prompt": "a", "top_p": 1.0000001}, "top_p"),
        ({"prompt": "a", "min_p": float("nan")}, "min_p"),
        ({"prompt": "a", "top_k": 2**31}, "top_k"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "presence_penalty": float("inf")}, "presence_penalty"),
        ({"prompt": "a", "logit_bias": {10**6: 1.0}}, "logit_bias"),
    )
    expected = reference(model, PROMPTS[0], 64)
    async with serving(model) as url, AsyncSeedanceClient(url) as client:
        neighbour = await client.complete(prompt=PROMPTS[0], temperature=0, max_tokens=64, stream=True)
        for options, field in guilty:
            with pytest.raises(InvalidRequest) as caught:
                await client.complete(**options)
            assert caught.value.field == field, options
        with pytest.raises(ContextLengthExceeded, match="511"):
            await client.complete(token_ids=[5] * 600)
        assert (await neighbour.collect()).text == expected


async def test_stream_ends_early_when_closed_or_cancelled(model: Path):
    """Leaving an iterator ends the generation; `cancel` lets its end arrive, and others go on."""
    async with serving(model) as url, AsyncSeedanceClient(url) as client:
        options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 400, "stream": True}
        left = await client.complete(prompt=PROMPTS[0], **options)
        async for _ in left:
            break
        await left.aclose()
        stopped = await client.complete(prompt=PROMPTS[1], **options)
        stopped.cancel()
        answer = await stopped.collect()
        assert answer.finish_reason == "cancelled"
        assert answer.usage.completion_tokens < 400
        whole = await client.complete(prompt=PROMPTS[2], temperature=0, max_tokens=8)
        assert whole.text == reference(model, PROMPTS[2], 8)


async def test_stop_strings_and_logprobs_reach_the_application(model: Path):
    """Case 3 through the whole stack, and one log probability a token."""
    text = reference(model, PROMPTS[0], 40)
    stop = text[len(text) // 2 :][:4]
    async with serving(model) as url, AsyncSeedanceClient(url) as client:
        answer = await client.complete(
            prompt=PROMPTS[0], temperature=0, max_tokens=40, stop=[stop], logprobs=True, top_logprobs=2
        )
    assert answer.text == text[: text.index(stop)]
    assert (answer.finish_reason, answer.stop) == ("stop", stop)
    assert answer.logprobs
    assert all(len(entry.top) == 2 for entry in answer.logprobs)
    assert all(entry.logprob <= 0 for entry in answer.logprobs)
