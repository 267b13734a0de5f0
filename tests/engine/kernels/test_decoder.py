import pytest
import torch

from seedance_server.engine.kernels.attention import PagedRows, pages_of
from seedance_server.engine.kernels.decoder import Decoder, DecoderLayer, DecoderWeights, Dense, RmsNorm
from seedance_server.engine.kernels.linear import PackedWeights
from seedance_server.engine.kernels.weight_memory import WeightMemory

HIDDEN, HEADS, DIM, WIDE, VOCABULARY = 40, 2, 16, 50, 70


def _random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16() / shape[-1] ** 0.5


def _linear(columns, width, seed, *, biased=False):
    return _random(columns, width, seed=seed), _random(columns, seed=seed + 50) if biased else None


def _norm(dim):
    return RmsNorm(torch.ones(dim), 1e-6, rounds_first=False)


@pytest.fixture
def decoder(memory):
    return _decoder(memory)


def _decoder(memory, *, embeddings=None):
    """Two layers without norms of heads, over a plane for each, with room for two sequences of eight."""
    layers = tuple(
        DecoderLayer(
            query_key_value=Dense.of(
                [_linear(HEADS * DIM, HIDDEN, seed=n + part) for part in range(3)], memory
            ),
            output=Dense.of([_linear(HIDDEN, HEADS * DIM, seed=n + 3)], memory),
            gate_up=Dense.interleaved(
                (_linear(WIDE, HIDDEN, seed=n + 4), _linear(WIDE, HIDDEN, seed=n + 5)), memory
            ),
            down=Dense.of([_linear(HIDDEN, WIDE, seed=n + 6)], memory),
            before_attention=_norm(HIDDEN),
            query=None,
            key=None,
            after_attention=None,
            before_feed_forward=_norm(HIDDEN),
            after_feed_forward=None,
            window=0,
            scaling=DIM**-0.5,
            rotary=0,
        )
        for n in (0, 10)
    )
    weights = DecoderWeights(
        layers=layers,
        final_norm=_norm(HIDDEN),
        head=PackedWeights.of(_random(VOCABULARY, HIDDEN, seed=30), memory),
        embeddings=embeddings,
        embedding_scale=3.0,
        query_heads=HEADS,
        feed_forward=WIDE,
        activation="silu",
    )
    planes = [torch.zeros(16, HEADS, DIM, dtype=torch.bfloat16) for _ in range(4)]
    decoder = Decoder(weights, [(0, 0), (0, 1)], [pages_of(planes[0], planes[1]), pages_of(*planes[2:])])
    decoder.kept = planes
    return decoder


ANGLES = torch.arange(8)[:, None] * torch.full((DIM,), 0.3)
ROTARY = [(ANGLES.cos().bfloat16(), ANGLES.sin().bfloat16())]


def _run(decoder, spans, ids, wanted):
    rows = PagedRows.of(spans, [[[0], [1]]], rings=(None,), block_size=8)
    logits, maxima = decoder.run(rows, torch.tensor(ids), torch.tensor(wanted, dtype=torch.int64), ROTARY)
    return logits.clone(), maxima.clone()


def test_wanted_rows_are_those_of_a_run_that_wants_all(decoder):
    """The last layer runs for them alone, and gives the same bits."""
    spans, ids = [(0, 5), (0, 3)], [3, 1, 4, 1, 5, 9, 2, 6]
    every, maxima = _run(decoder, spans, ids, range(8))
    assert every.shape == (8, VOCABULARY)
    for wanted in ([7], [0, 3], [1, 2, 6, 7], []):
        some, their_maxima = _run(decoder, spans, ids, wanted)
        assert torch.equal(some, every[wanted])
        assert torch.equal(their_maxima, maxima[wanted])


def test_later_rows_follow_from_what_earlier_steps_stored(decoder):
    """A prompt in one step, in two, or beside another: the same bits."""
    ids = [3, 1, 4, 1, 5]
    whole, _ = _run(decoder, [(0, 5), (0, 1)], [*ids, 7], [4, 5])
    _run(decoder, [(0, 2), (0, 1)], [*ids[:2], 8], [])
    later, _ = _run(decoder, [(2, 3), (0, 1)], [*ids[2:], 7], [2, 3])
    assert torch.equal(later, whole)


def test_trimmed_decoder_holds_no_logits_and_computes_the_same(decoder):
    """After a trial of many rows that memory is free, until a step needs some of it."""
    step = [(0, 5), (0, 3)], [3, 1, 4, 1, 5, 9, 2, 6], range(8)
    before = _run(decoder, *step)
    decoder.trim()
    assert decoder._logits.untyped_storage().nbytes() == decoder._maxima.untyped_storage().nbytes() == 0
    assert all(map(torch.equal, _run(decoder, *step), before))


def test_embeddings_are_the_head_s_weights_of_8_bits(library):
    """Where the two are one: each id's row is what its column's whole numbers and factors say."""
    memory = WeightMemory(library, bits=8)
    shared = _decoder(memory)
    unit = torch.eye(HIDDEN).bfloat16()
    rows = shared.weights.head.multiply(unit).T.contiguous()
    separate = _decoder(memory, embeddings=rows)
    step = [(0, 5), (0, 3)], [3, 1, 69, 33, 31, 32, 2, 64], range(8)
    for one, other in zip(_run(shared, *step), _run(separate, *step), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("bits", [16, 8])
def test_row_is_the_same_bits_alone_and_in_company(library, bits):
    """A whole decoder: none of its products looks at how many rows there are."""
    decoder = _decoder(WeightMemory(library, bits=bits))
    together, _ = _run(decoder, [(0, 8), (0, 6)], [3, 1, 4, 1, 5, 9, 2, 6, 7, 7, 7, 7, 7, 7], [7])
    for position, token in enumerate([3, 1, 4, 1, 5, 9, 2, 6]):
        alone, _ = _run(decoder, [(position, 1)], [token], [0])
    assert torch.equal(alone, together)


def test_maxima_are_those_of_the_logits(decoder):
    """The last panel is not full: nothing beyond the vocabulary counts."""
    logits, maxima = _run(decoder, [(0, 2), (0, 1)], [69, 0, 33], range(3))
    padded = torch.nn.functional.pad(logits, (0, -VOCABULARY % 32), value=-torch.inf)
    assert torch.equal(maxima, padded.unflatten(1, (-1, 32)).amax(-1))


def test_logits_are_written_into_the_same_room_at_each_step(decoder):
    """Rows as wide as a vocabulary cost more in fresh pages than in numbers."""
    rows = PagedRows.of([(0, 2), (0, 1)], [[[0], [1]]], rings=(None,), block_size=8)
    ids, wanted = torch.tensor([1, 2, 3]), torch.arange(3)
    first, _ = decoder.run(rows, ids, wanted, ROTARY)
    second, _ = decoder.run(rows, ids, wanted[:2], ROTARY)
    assert first.data_ptr() == second.data_ptr()


def test_ids_of_another_number_never_reach_the_kernel(decoder):
    """C++ believes what it is told."""
    with pytest.raises(ValueError, match="2 ids"):
        _run(decoder, [(0, 2), (0, 1)], [1, 2], [0])


@pytest.mark.parametrize("columns", [32, 33, 50, 72])
def test_gate_and_up_stand_panel_by_panel(memory, columns):
    """One pass over the rows gives both; a last panel that isn't full is filled with zeros."""
    gate, up = _linear(columns, 8, seed=1, biased=True), _linear(columns, 8, seed=2)
    dense = Dense.interleaved((gate, up), memory)
    x = _random(3, 8, seed=3)
    panels = -(-columns // 32)
    both = dense.weights.multiply(x, dense.bias).view(3, panels, 2, 32)
    for half, (weights, bias) in enumerate((gate, up)):
        alone = PackedWeights.of(weights, memory).multiply(x, bias)
        assert torch.equal(both[:, :, half].flatten(1)[:, :columns], alone)
        assert not both[:, :, half].flatten(1)[:, columns:].any()


def test_matrices_side_by_side_have_zeros_for_a_bias_that_one_lacks(memory):
    """Queries, keys and values are one product, whichever of them have biases."""
    parts = [_linear(20, 8, seed=1), _linear(12, 8, seed=2, biased=True)]
    x = _random(3, 8, seed=3)
    dense = Dense.of(parts, memory)
    alone = [PackedWeights.of(weights, memory).multiply(x, bias) for weights, bias in parts]
    assert torch.equal(dense.weights.multiply(x, dense.bias), torch.cat(alone, 1))
