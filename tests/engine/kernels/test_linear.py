import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine.kernels.linear import PackedLinear, PackedWeights, threads_handle
from seedance_server.engine.kernels.weight_memory import WeightMemory

# One rounding to bfloat16 (2^-9 of the result), and sums of another order: 1e-5 of the terms' sizes.
ROUNDING = 2**-8
ORDER = 1e-5


def _random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _eight_bits(weights):
    """What int8.h makes of a matrix: for each column's every 64 numbers a factor, the greatest over 127."""
    parts = [_whole_numbers(part) for part in weights.float().split(64, 1)]
    return torch.cat(parts, 1)


def _whole_numbers(part):
    most = part.abs().amax(1, keepdim=True)
    to_whole = torch.tensor(127.0) / most  # one rounding; of a plain number torch would make two
    numbers = (part * to_whole.where(most >= 1e-30, 0)).round()
    assert numbers.abs().max() <= 127
    return numbers.double() * (most / 127).double()


def _assert_product(y, x, weights, bias=None):
    expected = x.double() @ weights.double().T + (0 if bias is None else bias.double())
    room = ROUNDING * expected.abs() + ORDER * (x.double().abs() @ weights.double().abs().T) + 1e-30
    assert ((y.double() - expected).abs() <= room).all()


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 100),
    width=st.integers(1, 70),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_product_is_torch_s_within_one_rounding(memory_for_all, rows, columns, width, biased, seed):
    """Every shape, odd ones included: each result is the exact sum, rounded once."""
    x, weights = _random(rows, width, seed=seed), _random(columns, width, seed=seed + 100)
    bias = _random(columns, seed=seed + 200) if biased else None
    packed = PackedWeights.of(weights, memory_for_all)
    _assert_product(packed.multiply(x, bias), x, weights, bias)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 100),
    width=st.integers(1, 200),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_product_with_8_bits_is_that_of_the_whole_numbers_times_their_factors(
    eight_bits_for_all, rows, columns, width, biased, seed
):
    """As exact as the other: only the weights are rounded, once, when they are packed."""
    x, weights = _random(rows, width, seed=seed), _random(columns, width, seed=seed + 100)
    bias = _random(columns, seed=seed + 200) if biased else None
    packed = PackedWeights.of(weights, eight_bits_for_all)
    _assert_product(packed.multiply(x, bias), x, _eight_bits(weights), bias)


@pytest.fixture(scope="module")
def memory_for_all(library):
    return WeightMemory(library)


@pytest.fixture(scope="module")
def eight_bits_for_all(library):
    return WeightMemory(library, bits=8)


def test_whole_numbers_up_to_127_stay_what_they_are_in_8_bits(library):
    """Every size and sign at every place of a panel's step: products with unit rows are the weights."""
    numbers = torch.arange(64 * 64).view(64, 64) % 255 - 127
    numbers[:, 5] = 127  # so that each column's factor is 1
    packed = PackedWeights.of(numbers.bfloat16(), WeightMemory(library, bits=8))
    assert torch.equal(packed.multiply(torch.eye(64).bfloat16()).T, numbers.bfloat16())


@pytest.mark.parametrize("size", [1e-38, 1e-33])
def test_numbers_too_small_for_a_factor_are_0_in_8_bits(library, size):
    """What training left of unused weights: reciprocals overflow or nearly; nothing else may suffer."""
    weights = _random(3, 128)
    weights[1, :64] *= size
    weights[2] = 0
    packed = PackedWeights.of(weights, WeightMemory(library, bits=8))
    found = packed.multiply(torch.eye(128).bfloat16()).T
    assert torch.equal(found, _eight_bits(weights).bfloat16())
    assert not found[1, :64].any()
    assert found[1, 64:].all()


def test_8_bits_take_half_the_memory(library):
    """And a factor of 4 bytes for every 64."""
    memory = WeightMemory(library, bits=8)
    PackedWeights.of(_random(64, 128), memory)
    assert memory.size_bytes == 64 * 128 + 64 * 2 * 4


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_row_is_the_same_bits_alone_and_among_others(library, threads, bits):
    """A sequence's numbers don't depend on its neighbours, nor on the number of threads."""
    weights = _random(200, 130)
    x = _random(300, 130, seed=1)
    packed = PackedWeights.of(weights, WeightMemory(library, bits=bits))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = torch.cat([packed.multiply(row[None]) for row in x])
    torch.set_num_threads(threads)
    try:
        for rows in (300, 193, 192, 64, 25, 24, 13, 12, 7, 2):
            assert torch.equal(packed.multiply(x[:rows]), alone[:rows])
            assert torch.equal(packed.multiply(x[-rows:]), alone[-rows:])
    finally:
        torch.set_num_threads(before)


def test_rows_may_lie_apart(memory):
    """A slice of a wider tensor is read where it is."""
    wide, weights = _random(9, 100), _random(33, 40)
    packed = PackedWeights.of(weights, memory)
    assert torch.equal(packed.multiply(wide[:, 20:60]), packed.multiply(wide[:, 20:60].contiguous()))
    assert torch.equal(packed.multiply(wide.T[20:60].T), packed.multiply(wide[:, 20:60].contiguous()))


def test_leading_dimensions_are_kept(memory):
    """As torch's linear layer does."""
    packed = PackedWeights.of(_random(5, 8), memory)
    assert packed.multiply(_random(1, 3, 8)).shape == (1, 3, 5)
    assert packed.multiply(_random(0, 8)).shape == (0, 5)


@pytest.mark.parametrize("columns", [96, 100, 17])
def test_maxima_are_those_of_each_panel(memory, columns):
    """The first level of the sampler's search comes with the product: the greatest of what was written."""
    x, weights = _random(7, 40), -_random(columns, 40, seed=3).abs()
    packed = PackedWeights.of(weights, memory)
    maxima = torch.empty(7, packed.panels, dtype=torch.bfloat16)
    y = packed.multiply(x.abs(), maxima=maxima)
    padded = torch.nn.functional.pad(y, (0, -columns % 32), value=-torch.inf)
    assert torch.equal(maxima, padded.unflatten(1, (-1, 32)).amax(-1))


def test_maxima_tell_of_nan_and_infinity(memory):
    """A row that can't be sampled from is seen by its maxima, wherever the bad number stands."""
    weights = torch.zeros(64, 2, dtype=torch.bfloat16)
    weights[5, 0] = weights[40, 1] = 1
    x = torch.tensor([[torch.nan, 0.0], [torch.inf, -torch.inf], [1.0, 2.0]]).bfloat16()
    packed = PackedWeights.of(weights, memory)
    maxima = torch.empty(3, 2, dtype=torch.bfloat16)
    packed.multiply(x, maxima=maxima)
    assert maxima.isnan().any(1).tolist() == [True, True, False]
    assert maxima[2].tolist() == [1.0, 2.0]


def test_result_goes_where_it_is_wanted(memory):
    """Logits are wide: fresh pages for each step would cost more than writing them."""
    x, packed = _random(3, 8), PackedWeights.of(_random(40, 8), memory)
    room = torch.empty(3, 40, dtype=torch.bfloat16)
    assert packed.multiply(x, out=room).data_ptr() == room.data_ptr()
    assert torch.equal(room, packed.multiply(x))


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": torch.zeros(2, 7, dtype=torch.bfloat16)},
        {"x": torch.zeros(2, 8)},
        {"x": torch.zeros(2, 8, dtype=torch.bfloat16), "out": torch.zeros(1, 40, dtype=torch.bfloat16)},
        {"x": torch.zeros(2, 8, dtype=torch.bfloat16), "out": torch.zeros(40, 2, dtype=torch.bfloat16).T},
        {"x": torch.zeros(2, 8, dtype=torch.bfloat16), "maxima": torch.zeros(2, 2)},
    ],
)
def test_wrong_shapes_never_reach_the_kernel(memory, wrong):
    """C++ believes what it is told: a wrong size would write beyond the end."""
    packed = PackedWeights.of(_random(40, 8), memory)
    with pytest.raises(ValueError, match=r"rows of|no room"):
        packed.multiply(**wrong)


def test_other_number_types_are_not_packed(memory):
    """A float32 model belongs to torch."""
    with pytest.raises(TypeError, match="float32"):
        PackedWeights.of(torch.zeros(4, 4), memory)


@pytest.mark.parametrize("biased", [True, False])
def test_packed_layer_takes_the_place_of_a_linear_one(memory, biased):
    """Bias included; the original may go."""
    linear = torch.nn.Linear(48, 70, bias=biased).bfloat16()
    x = _random(1, 5, 48)
    packed = PackedLinear.of(linear, memory)
    _assert_product(packed(x)[0], x[0], linear.weight, linear.bias)


def test_threads_are_as_many_as_torch_s(library):
    """One setting decides for both."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = threads_handle()
        torch.set_num_threads(2)
        assert threads_handle() != one
        torch.set_num_threads(1)
        assert threads_handle() == one
    finally:
        torch.set_num_threads(before)
