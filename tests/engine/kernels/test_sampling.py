"""The passes over whole rows of logits, against their twins."""

import math

import pytest
import torch

from seedance_server.engine.candidates import BlockPasses
from seedance_server.engine.kernels.sampling import block_weights, can_read, copy_rows
from seedance_server.engine.native_backend import NativeBackend
from seedance_server.engine.sampler import Sampler
from tests.engine.test_sampler import MIXED

pytestmark = pytest.mark.usefixtures("library")


def random_logits(rows, vocabulary, dtype):
    return (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocabulary", [1, 31, 32, 77, 40_001])
def test_weights_are_those_of_the_twin(vocabulary, dtype):
    """Any rows in any order, each under its own peak and temperature, and a last block that is short."""
    logits = random_logits(3, vocabulary, dtype)
    rows, temperatures = [2, 0, 2], torch.tensor([0.3, 1.0, 5.0])
    peaks = logits[rows].float().amax(-1)
    expected = BlockPasses().weights(logits, rows, peaks, temperatures)
    found = block_weights(logits, torch.tensor(rows), peaks, temperatures)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_of_a_row_are_the_same_bits_alone(dtype):
    """Nothing depends on the rows beside it, nor on which thread took it."""
    logits = random_logits(9, 20_000, dtype)
    peaks, temperatures = logits.amax(-1).float(), torch.linspace(0.2, 3, 9)
    together = block_weights(logits, torch.arange(9), peaks, temperatures)
    for row in range(9):
        alone = block_weights(logits, torch.tensor([row]), peaks[row : row + 1], temperatures[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_token_that_is_ruled_out_has_no_weight_at_all():
    """Else it could be drawn, once in a very long while."""
    logits = torch.full((1, 64), -math.inf)
    logits[0, 40] = -7.0
    peaks = torch.tensor([-7.0])
    assert block_weights(logits, torch.tensor([0]), peaks, torch.ones(1)).tolist() == [[0.0, 1.0]]


def test_what_the_kernel_does_not_read_is_refused():
    """An address beyond the logits, or numbers of another width, would be read as they come."""
    logits, one = torch.zeros(2, 64), torch.ones(1)
    assert not can_read(logits.double())
    assert not can_read(logits.t())
    with pytest.raises(ValueError, match="float64"):
        block_weights(logits.double(), torch.tensor([0]), one, one)
    with pytest.raises(ValueError, match="2 rows"):
        block_weights(logits, torch.tensor([2]), one, one)
    with pytest.raises(ValueError, match="each row"):
        block_weights(logits, torch.tensor([0, 1]), one, one)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocabulary", [1, 31, 32, 77, 40_001])
def test_copies_are_those_of_the_twin(vocabulary, dtype):
    """What isn't allowed is ruled out, what is stays, and the maxima are those of what is left."""
    logits = random_logits(3, vocabulary, dtype)
    logits[1, vocabulary // 2] = math.nan
    allowed = torch.rand(vocabulary, generator=torch.Generator().manual_seed(2)) < 0.3
    rows, masks = [2, 1, 2, 0], [None, None, allowed, allowed.roll(1)]
    expected, their_maxima = BlockPasses().copy(logits, rows, masks)
    copies, maxima = torch.full((4, vocabulary), 5.0), torch.full((4, -(-vocabulary // 32)), 5.0)
    copy_rows(logits, torch.tensor(rows), masks, copies, maxima)
    torch.testing.assert_close(copies, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(maxima, their_maxima, rtol=0, atol=0, equal_nan=True)


def test_copy_refuses_room_and_masks_that_do_not_fit():
    """It would write beyond what it was given."""
    logits, rows, mask = torch.zeros(2, 64), torch.tensor([0]), torch.ones(64, dtype=torch.bool)
    copies, maxima = torch.empty(1, 64), torch.empty(1, 2)
    with pytest.raises(ValueError, match="no room"):
        copy_rows(logits, rows, [None], copies[:, :63], maxima)
    with pytest.raises(ValueError, match="no room"):
        copy_rows(logits, rows, [None], copies, maxima[:, :1])
    for masks in ([mask[:63]], [mask.int()], []):
        with pytest.raises(ValueError, match="allowed"):
            copy_rows(logits, rows, masks, copies, maxima)


def test_rows_of_all_kinds_get_on_the_kernels_what_torch_gives_them_and_what_they_get_alone():
    """The sampler's rules are the same over either; here its sums and copies are the kernels'."""
    logits = random_logits(len(MIXED), 1003, torch.bfloat16)
    twin = Sampler(1003).sample(logits, MIXED)
    sampler = Sampler(1003, NativeBackend().passes)
    together = sampler.sample(logits, MIXED)
    assert together.ids == twin.ids
    for index, mine in enumerate(MIXED):
        alone = sampler.sample(logits[index : index + 1].clone(), [mine])
        assert (together.ids[index], together.logprobs[index]) == (alone.ids[0], alone.logprobs[0])
        if (theirs := twin.logprobs[index]) is not None:
            assert together.logprobs[index].logprob == pytest.approx(theirs.logprob, abs=1e-4)
