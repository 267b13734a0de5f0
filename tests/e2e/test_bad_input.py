"""Bad input against a real engine behind the real server: only the guilty request fails, neighbours go on.

Empty prompts, parameters out of range, bounds on tokens, prompts around the context's end, prompts that the
KV pool can never hold, control tokens in a user's text.
"""

from __future__ import annotations

import pytest
import torch

from seedance_server.config import Config
from seedance_server.engine.progress import silent
from seedance_server.served_model import ServedModel, load_served_model
from seedance_server.testing import serve_in_memory
from seedance_wire.messages import Delta, ErrorCode, FinishReason, Flush, Refused
from tests.server.wire_client import wire_client
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow

GREEDY = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 40}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    return str(build_tiny_model("qwen2", tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def model(path: str) -> ServedModel:
    return load_served_model(Config(model_path=path, kv_memory_bytes=1 << 23, max_context_tokens=256), silent)


async def alone(model: ServedModel) -> str:
    async with serve_in_memory(model=model) as server, wire_client(server.connect()) as client:
        await client.submit(sampling=GREEDY)
        await client.accepted()
        return (await client.until_end())[0]


async def test_bad_requests_leave_a_running_neighbours_text_as_it_is(autojump_clock, model) -> None:
    """Each is refused with its field; the neighbour's greedy text is the one it has alone."""
    expected = await alone(model)
    bad = [
        ({"prompt": ""}, ErrorCode.INVALID_REQUEST),
        ({"messages": ()}, ErrorCode.INVALID_REQUEST),
        ({"token_ids": ()}, ErrorCode.INVALID_REQUEST),
        ({"token_ids": (10**6,)}, ErrorCode.INVALID_REQUEST),
        ({"token_ids": (-1,)}, ErrorCode.INVALID_REQUEST),
        ({"sampling": {"temperature": float("nan")}}, ErrorCode.INVALID_REQUEST),
        ({"sampling": {"temperature": float("-inf")}}, ErrorCode.INVALID_REQUEST),
        ({"sampling": {"top_p": 0.0}}, ErrorCode.INVALID_REQUEST),
        ({"sampling": {"presence_penalty": float("inf")}}, ErrorCode.INVALID_REQUEST),
        ({"sampling": {"logit_bias": {10**6: 1.0}}}, ErrorCode.INVALID_REQUEST),
        ({"token_ids": (1,) * 256}, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
        ({"prompt": "x" * 200_000}, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
    ]
    async with serve_in_memory(model=model) as server, wire_client(server.connect()) as client:
        await client.submit(sampling=GREEDY)
        await client.accepted()
        sent = {await client.submit(**more): code for more, code in bad}
        text, refused = "", {}
        while True:
            event = await client.receive()
            if isinstance(event, Refused):
                refused[event.sequence_id] = event.code
            elif isinstance(event, Delta):
                text += event.text
            elif isinstance(event, Flush) and event.final:
                break
        assert refused == sent
        assert text == expected


@pytest.mark.parametrize("size", [254, 255, 256, 257, 512])
async def test_prompts_around_the_end_of_the_context(autojump_clock, model, size: int) -> None:
    """One token of room is enough; without it the refusal names both numbers."""
    async with serve_in_memory(model=model) as server, wire_client(server.connect()) as client:
        await client.submit(token_ids=(65,) * size, sampling={"ignore_eos": True})
        if size < 256:
            await client.accepted()
            _, end = await client.until_end()
            assert end.final.finish_reason is FinishReason.LENGTH
            assert end.final.usage.completion_tokens == 256 - size
        else:
            refused = await client.refused()
            assert refused.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
            assert str(size) in refused.message
            assert "255" in refused.message


@pytest.mark.parametrize("max_tokens", [1, 255, 256, 10**8, 2**63 - 1, None])
async def test_any_bound_on_tokens_ends(autojump_clock, model, max_tokens) -> None:
    """It is a bound, not a reservation."""
    async with serve_in_memory(model=model) as server, wire_client(server.connect()) as client:
        await client.submit(token_ids=(65,) * 10, sampling={"ignore_eos": True, "max_tokens": max_tokens})
        await client.accepted()
        _, end = await client.until_end()
        assert end.final.usage.completion_tokens == min(max_tokens or 246, 246)


async def test_a_prompt_that_never_fits_the_pool_is_refused_and_small_ones_run(
    autojump_clock, path: str
) -> None:
    """Refused at admission, so that it can't wait for ever at the head of the queue."""
    small = load_served_model(Config(model_path=path, kv_memory_bytes=1 << 16), silent)
    fits = small.context_tokens
    assert fits < 512
    async with serve_in_memory(model=small) as server, wire_client(server.connect()) as client:
        await client.submit(token_ids=(65,) * (fits + 1))
        assert (await client.refused()).code is ErrorCode.CAPACITY_EXCEEDED
        for _ in range(10):
            await client.submit(token_ids=(65,) * 4, sampling={"ignore_eos": True, "max_tokens": 3})
        ended = 0
        while ended < 10:
            event = await client.receive()
            ended += isinstance(event, Flush) and event.final is not None


async def test_control_tokens_in_a_users_text_stay_text(autojump_clock, model) -> None:
    """What a user writes never becomes a control id, so it costs more tokens than the control token would."""
    usage = {}
    for trusted in (False, True):
        async with serve_in_memory(model=model) as server, wire_client(server.connect()) as client:
            await client.submit("<|im_end|>" * 5, sampling={"max_tokens": 1}, parse_special=trusted)
            await client.accepted()
            _, end = await client.until_end()
            usage[trusted] = end.final.usage.prompt_tokens
    assert usage[False] > usage[True]
