"""Drives an engine to the end of its work, checking its books at every step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from attrs import define, field

from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import LoadedModel
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import Finish, GenerationRequest, TokenLogprob

MAX_STEPS = 3000
POOL_BYTES = 8 * 2**20

NEW_TOKENS = 40
# One token; within the window of 16; beyond it; several chunks of a small budget; the same start twice.
PROMPTS = [(65,), tuple(range(30, 42)), tuple(range(100, 150)), tuple(range(30, 60)), tuple(range(3, 100, 2))]


@define
class Answer:
    """All outputs of one sequence, joined."""

    text: str = ""
    token_ids: list[int] = field(factory=list)
    logprobs: list[TokenLogprob] = field(factory=list)
    finish: Finish | None = None


def make_engine(
    model: LoadedModel, *, blocks: int | None = None, block_size: int = 4, **settings: Any
) -> Engine:
    """An engine with a pool of `blocks` blocks, or plenty."""
    memory = POOL_BYTES if blocks is None else blocks * model.geometry.block_bytes(block_size)
    injected = {name: settings.pop(name) for name in ("clock", "entropy", "sleep") if name in settings}
    return Engine(model, EngineConfig(block_size=block_size, kv_memory_bytes=memory, **settings), **injected)


def make_request(sequence_id: int, prompt_ids: Iterable[int], **params: Any) -> GenerationRequest:
    """A greedy request, if `params` don't say otherwise."""
    params = {"temperature": 0.0} | params
    return GenerationRequest(
        id=sequence_id, prompt_ids=tuple(prompt_ids), params=SamplingParams(**params), arrival_s=0.0
    )


def greedy_requests(**params: Any) -> list[GenerationRequest]:
    """One for each of `PROMPTS`, numbered from 0."""
    return [
        make_request(n, prompt, **{"max_tokens": NEW_TOKENS} | params) for n, prompt in enumerate(PROMPTS)
    ]


def ids_of(answers: dict[int, Answer]) -> list[list[int]]:
    """The tokens of all answers, by number."""
    return [answers[n].token_ids for n in sorted(answers)]


def collect(engine: Engine, answers: dict[int, Answer]) -> None:
    """One step, its outputs added to `answers`."""
    for output in engine.step():
        answer = answers.setdefault(output.id, Answer())
        assert answer.finish is None, f"sequence {output.id} goes on after its end"
        answer.text += output.text
        answer.token_ids += output.token_ids
        answer.logprobs += output.logprobs
        answer.finish = output.finish
    engine.check_integrity()


def drive(
    engine: Engine, requests: Iterable[GenerationRequest] = (), *, before: Callable[[int], None] | None = None
) -> dict[int, Answer]:
    """Add `requests`, then step until nothing is left; `before(n)` runs ahead of step n."""
    for request in requests:
        engine.add(request)
    answers: dict[int, Answer] = {}
    for step in range(MAX_STEPS):
        if before is not None:
            before(step)
        if not engine.has_work():
            break
        collect(engine, answers)
    assert not engine.has_work(), "no end in sight"
    if engine.statistics().paused == 0:
        assert engine.statistics().used_blocks == 0, "an idle engine holds blocks"
    return answers


def generate_alone(stock: Any, prompt_ids: Iterable[int], new_tokens: int) -> list[int]:
    """What Transformers' own greedy search gives for this prompt alone."""
    prompt = torch.tensor([list(prompt_ids)])
    output = stock.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new_tokens, do_sample=False
    )
    return output[0, prompt.shape[1] :].tolist()
