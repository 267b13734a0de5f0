"""Recorded steps, on the CPU's twin and on that of CUDA, whose graphs are what they are on a GPU."""

import logging
from itertools import count

import pytest
import torch

from seedance_server.engine import decode_graphs
from seedance_server.engine import engine as engine_module
from seedance_server.engine.decode_graphs import GraphSizes
from seedance_server.engine.errors import CaptureFailed, GraphsUnavailable
from seedance_server.engine.streams import CpuStreams, CudaStreams
from tests.engine.driving import collect, drive, greedy_requests, ids_of, make_engine, make_request
from tests.engine.fake_cuda import FakeCuda
from tests.tiny_models import KINDS, SLIDING_WINDOW

CPU = torch.device("cpu")
REPLAYS = {"qwen2": (17, 58), "llama": (23, 58), "gemma3": (10, 49)}
"""Steps that were replays, and all steps, where each look at the clock is a second after the one before."""


@pytest.fixture
def fake_cuda(monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setattr(engine_module, "open_streams", lambda device, clock: CudaStreams(CPU, cuda))
    return cuda


@torch.inference_mode()
def _poison(graphs):
    """Ruin all that a replay must overwrite before it reads it: inputs and logits of every size."""
    for recording in graphs._recordings.values():
        recording.inputs.fill_(2**40)
    graphs._logits.fill_(float("nan"))


def test_graph_sizes_double_up_to_what_is_needed():
    """Few recordings, none of which pads more than it holds; reads are as long as the cache's own."""
    sizes = GraphSizes.up_to(100, 1000)
    assert sizes == GraphSizes((1, 2, 4, 8, 16, 32, 64, 100), (256, 512, 1024))
    assert GraphSizes.up_to(1, 10, least_rows=2) == GraphSizes((2,), (256,))


@pytest.mark.parametrize(
    ("rows", "length", "size"),
    [(1, 1, (1, 256)), (3, 256, (4, 256)), (100, 257, (100, 512)), (101, 1, None), (1, 1025, None)],
)
def test_graph_sizes_give_the_smallest_that_holds_a_step(rows, length, size):
    """What is larger than all of them runs as ever."""
    assert GraphSizes.up_to(100, 1000).of(rows, length) == size


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_give_the_tokens_of_the_stock_model(kind, load_tiny, reference, fake_cuda):
    """Static places, padding and tables on the device change no token, beyond windows and in any company."""
    engine = make_engine(
        load_tiny(kind), cuda_graphs="on", prefill_budget_tokens=7, max_sequences=5, clock=count().__next__
    )
    assert engine.record_graphs() == "answers' steps are recorded: 3 sizes, up to 5 rows"
    graphs = engine._runner.graphs
    answers = drive(engine, greedy_requests(), before=lambda _: _poison(graphs))
    assert ids_of(answers) == reference[kind]
    assert (graphs.replays, engine.statistics().steps) == REPLAYS[kind]
    assert SLIDING_WINDOW < 40, "answers go beyond the window"


def test_recorded_steps_read_the_places_that_they_were_recorded_with(load_tiny, fake_cuda):
    """Whatever a recording took from the host would stay as it was then, and the tokens would differ."""
    engine = make_engine(load_tiny("gemma3"), cuda_graphs="on", max_sequences=2, speculative_tokens=0)
    engine.record_graphs()
    calls = [len(graph.calls) for graph in fake_cuda.graphs]
    plain = drive(make_engine(load_tiny("gemma3")), [make_request(0, range(30, 50), max_tokens=8)])
    answers = drive(engine, [make_request(0, range(30, 50), max_tokens=8)])
    assert ids_of(answers) == ids_of(plain)
    assert [len(graph.calls) for graph in fake_cuda.graphs] == calls, "recorded once"


def test_engine_makes_what_steps_read_on_the_stream_that_they_run_on(load_tiny, fake_cuda, monkeypatch):
    """Made on another, it might come after the first step."""
    open_runner, streams = engine_module.open_runner, []

    def watched(*arguments, **settings):
        streams.append(fake_cuda.current_stream(CPU).number)
        return open_runner(*arguments, **settings)

    monkeypatch.setattr(engine_module, "open_runner", watched)
    make_engine(load_tiny("llama"))
    assert streams == [1]


class _Foresight:
    """Drafts that are right at every other place."""

    drafted_tokens = accepted_tokens = 0

    def __init__(self, answer):
        self._answer = answer

    def propose(self, running, *_):
        for sequence in running:
            done = sequence.completion_tokens
            right = self._answer[done : done + 3] if sequence.remaining == 1 else []
            sequence.draft = tuple(token if done % 2 else (token + 1) % 384 for token in right[:-1])

    def note(self, *_):
        pass

    def learn(self, _sequence, drafted, accepted):
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted

    def forget(self, sequence):
        pass


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_recorded_steps_run_drafts_too(kind, load_tiny):
    """A draft's rows are rows like others, right or wrong: the same tokens, in fewer steps."""
    request = make_request(0, range(30, 42), max_tokens=30, ignore_eos=True)
    plain = drive(make_engine(load_tiny(kind)), [request])
    engine = make_engine(load_tiny(kind), cuda_graphs="on", max_sequences=8)
    engine._speculation = foresight = _Foresight(plain[0].token_ids)
    assert ids_of(drive(engine, [request])) == ids_of(plain)
    assert 0 < foresight.accepted_tokens < foresight.drafted_tokens
    assert engine.statistics().recorded_steps == engine.statistics().steps - 1, "all but the prompt's"


def test_recorded_steps_take_another_size_when_answers_grow(load_tiny):
    """An answer that goes beyond a recording's reach moves on to the next."""
    engine = make_engine(load_tiny("qwen2"), cuda_graphs="on", max_sequences=1)
    plain = make_engine(load_tiny("qwen2"))
    request = make_request(0, [(7 * place) % 250 for place in range(250)], max_tokens=12)
    assert ids_of(drive(engine, [request])) == ids_of(drive(plain, [request]))
    assert engine._runner.graphs.recorded == 2


def test_steps_that_a_recording_would_make_many_times_as_long_are_run_as_ever(load_tiny, monkeypatch):
    """One long answer beside short ones: in a recording each row would read as much as the longest."""
    monkeypatch.setattr(decode_graphs, "_SHORTEST", 16)
    requests = [make_request(n, range(30, 34 + n), max_tokens=6, ignore_eos=True) for n in range(7)]
    long = make_request(7, [(7 * place) % 250 for place in range(200)], max_tokens=6, ignore_eos=True)
    plain = drive(make_engine(load_tiny("qwen2"), speculative_tokens=0), [*requests, long])
    engine = make_engine(load_tiny("qwen2"), cuda_graphs="on", max_sequences=8, speculative_tokens=0)
    assert ids_of(drive(engine, [*requests, long])) == ids_of(plain)
    assert engine.statistics().recorded_steps == 0
    assert ids_of(drive(engine, requests)) == ids_of(plain)[:7]
    assert engine.statistics().recorded_steps > 0


def test_recorded_steps_leave_other_sequences_blocks_alone(load_tiny):
    """Rows of padding write and read one block that no table holds."""
    engine = make_engine(load_tiny("llama"), cuda_graphs="on", max_sequences=8, blocks=40)
    cache = engine._runner._cache
    for plane in cache.keys + cache.values:
        plane.fill_(float("nan"))
    engine.add(make_request(0, [9], max_tokens=3, ignore_eos=True))
    answers = {}
    for _ in range(3):
        collect(engine, answers)
    assert len(answers[0].token_ids) == 3
    written = ~cache.keys[0].isnan().all(-1).all(-1)
    assert written.nonzero().flatten().tolist() == [0, 1, 2, 40 * 4]


def test_recorded_steps_survive_preemption(load_tiny, reference):
    """A pool too small for all: what was computed anew is in other blocks, and the tables say so."""
    engine = make_engine(load_tiny("llama"), cuda_graphs="on", blocks=40, prefill_budget_tokens=16)
    assert ids_of(drive(engine, greedy_requests())) == reference["llama"]
    assert engine.statistics().preemptions


def test_recording_that_fails_leaves_steps_as_ever(load_tiny, fake_cuda, caplog):
    """A model or driver that can't be recorded is served all the same, and said so once."""
    fake_cuda.refuses = "CUDA error: operation not permitted when stream is capturing\nmore"
    engine = make_engine(load_tiny("llama"), cuda_graphs="on")
    plain = drive(make_engine(load_tiny("llama")), greedy_requests(max_tokens=4))
    with caplog.at_level(logging.WARNING):
        assert ids_of(drive(engine, greedy_requests(max_tokens=4))) == ids_of(plain)
    assert len(caplog.records) == 1
    assert engine._runner.graphs.obstacle.endswith("capturing")
    assert engine._runner.graphs.replays == 0


def test_recording_that_fails_is_told_at_the_start(load_tiny, fake_cuda):
    """With "auto" a line says so, with "on" the server doesn't start."""
    fake_cuda.refuses = "CUDA error: no"
    engine = make_engine(load_tiny("llama"), cuda_graphs="on")
    with pytest.raises(GraphsUnavailable, match="CUDA error: no"):
        engine.record_graphs()
    graphs = make_engine(load_tiny("llama"), cuda_graphs="on")._runner.graphs
    assert "one kernel at a time" in graphs.warm_up()


def test_model_that_waits_for_its_device_can_t_be_recorded(load_tiny, fake_cuda):
    """What a GPU refuses the twin refuses, so that a test on a CPU tells."""
    engine = make_engine(load_tiny("llama"), cuda_graphs="on")
    model = engine._runner.graphs._model

    class Waiting:
        def __call__(self, **arguments):
            int(arguments["position_ids"].max())
            return model(**arguments)

    engine._runner.graphs._model = Waiting()
    with pytest.raises(GraphsUnavailable, match="aten::item"):
        engine.record_graphs()


@pytest.mark.parametrize("wanted", ["auto", "off"])
def test_nothing_is_recorded_on_a_cpu_unless_asked_for(wanted, load_tiny):
    """There it would gain nothing."""
    engine = make_engine(load_tiny("llama"), cuda_graphs=wanted)
    assert engine._runner.graphs is None
    assert engine.record_graphs() is None


def test_native_kernels_say_that_their_steps_can_t_be_recorded(load_tiny, monkeypatch):
    """Asked for by name, what can't be is an error, with what to do."""
    model = load_tiny("llama")
    monkeypatch.setattr(model.backend, "graph_obstacle", "they do it themselves")
    with pytest.raises(GraphsUnavailable, match="they do it themselves"):
        make_engine(model, cuda_graphs="on")


def test_capture_failure_of_a_later_size_ends_all_of_them(load_tiny, monkeypatch):
    """A device that refuses one size mid-way is run as ever from there on, with the same tokens."""
    engine = make_engine(load_tiny("qwen2"), cuda_graphs="on", max_sequences=1)
    engine.record_graphs()

    def refuse(_streams, _work):
        raise CaptureFailed("no more of this")

    monkeypatch.setattr(CpuStreams, "capture", refuse)
    request = make_request(0, [(7 * place) % 250 for place in range(250)], max_tokens=12)
    assert ids_of(drive(engine, [request])) == ids_of(drive(make_engine(load_tiny("qwen2")), [request]))
    assert engine._runner.graphs.obstacle == "no more of this"
