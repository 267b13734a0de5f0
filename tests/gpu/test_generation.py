"""Whole answers on a GPU, against a CPU's float32."""

import pytest
import torch

from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.errors import OutOfDeviceMemory
from seedance_server.engine.sampler import Sampler, SamplingRow
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.streams import open_streams
from seedance_server.engine.token_history import TokenHistory
from tests.engine.driving import drive, greedy_requests, ids_of, make_engine, make_request
from tests.tiny_models import KINDS

SAMPLED = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 30, "ignore_eos": True}


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_a_cpu(kind, graphs, load_tiny, reference):
    """Recorded or not, in chunks and in company, beyond sliding windows: every token of float32."""
    engine = make_engine(load_tiny(kind), cuda_graphs=graphs, prefill_budget_tokens=7)
    engine.record_graphs()
    assert ids_of(drive(engine, greedy_requests())) == reference[kind]
    if graphs == "on":
        assert engine._runner.graphs.obstacle is None
        assert engine._runner.graphs.replays > 0


@pytest.mark.parametrize("kind", KINDS)
def test_answers_survive_preemption(kind, load_tiny, reference):
    """A pool too small for all: blocks are taken, and what they held is computed again."""
    engine = make_engine(load_tiny(kind), blocks=110 if kind == "gemma3" else 40, prefill_budget_tokens=16)
    assert ids_of(drive(engine, greedy_requests())) == reference[kind]
    assert engine.statistics().preemptions


def test_drawn_answers_are_alike_recorded_or_not(load_tiny):
    """Chance follows from seed and position alone."""
    requests = [make_request(n, range(30, 40 + n), seed=n, **SAMPLED) for n in range(6)]
    on, off = (
        ids_of(drive(make_engine(load_tiny("gemma3"), cuda_graphs=graphs), requests))
        for graphs in ("on", "off")
    )
    assert on == off


def test_half_a_step_is_run_where_memory_is_short(load_tiny, reference, monkeypatch):
    """The device's own error is understood, and the answer isn't harmed."""
    engine = make_engine(load_tiny("llama"), prefill_budget_tokens=16)
    run, device = engine._runner.run, load_tiny("llama").device

    def short(batch):
        if batch.tokens > 6:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        return run(batch)

    monkeypatch.setattr(engine._runner, "run", short)
    assert ids_of(drive(engine, greedy_requests())) == reference["llama"]

    def none(_batch):
        torch.empty(1 << 50, dtype=torch.uint8, device=device)

    monkeypatch.setattr(engine._runner, "run", none)
    engine.add(make_request(0, [65], max_tokens=1))
    with pytest.raises(OutOfDeviceMemory):
        engine.step()


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_forward_pass_never_waits_for_the_device(graphs, load_tiny):
    """The host queues a step and goes on: what waits is an error in this mode of PyTorch's."""
    engine = make_engine(load_tiny("gemma3"), cuda_graphs=graphs)
    engine.record_graphs()
    sequence = make_engine(load_tiny("gemma3"))._make_generation(make_request(0, [5, 6, 7])).sequence
    assert engine._pool.reserve(sequence.table, 3)
    with torch.inference_mode(), engine._streams.compute():
        engine._runner.run(Batch.of([Chunk.of(sequence, 2)]))
        sequence.computed = 2
        engine._runner.run(Batch.of([Chunk.of(sequence, 1)]))  # whatever is set up once is set up
        torch.cuda.set_sync_debug_mode("error")
        try:
            engine._runner.run(Batch.of([Chunk.of(sequence, 1)]))
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_sampler_chooses_what_it_does_on_a_cpu(device):
    """The same logits, seeds and parameters: the same tokens and log-probabilities."""
    vocabulary = 50_000
    logits = 3 * torch.randn(12, vocabulary, generator=torch.Generator().manual_seed(1))
    some = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.2, "top_k": 40, "min_p": 0.01},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {7: 5.0}, "temperature": 0.0},
        {"logprobs": True, "top_logprobs": 5, "temperature": 0.9},
    ]
    rows = [
        SamplingRow(
            params=SamplingParams(**params), seed=n, position=3, counts=TokenHistory(2).counts([1, 2, 7, 7])
        )
        for n, params in enumerate(some * 2)
    ]
    here = Sampler(vocabulary).sample(logits, rows)
    streams = open_streams(device, lambda: 0.0)
    with streams.compute():
        there = Sampler(vocabulary, streams=streams).sample(logits.to(device), rows)
    assert there.ids == here.ids
    assert there.errors == here.errors
    for mine, other in zip(here.logprobs, there.logprobs, strict=True):
        assert (mine is None) is (other is None)
        if mine is not None:
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in other.top]
