"""The kernel that chooses tokens: what it refuses and leaves out; its choices: test_native_sampler.py."""

import re
from array import array
from pathlib import Path

import pytest
import torch

from seedance_server.engine.kernels import structures
from seedance_server.engine.kernels.sampling import can_read, choose
from seedance_server.engine.kernels.structures import MOST_REPORTED, Choice, Request
from seedance_server.engine.sampling_params import MAX_TOP_LOGPROBS

pytestmark = pytest.mark.usefixtures("library")


def test_most_likely_token_is_chosen_and_its_logit_told():
    """In either type, from any row, also where the last block is short and where rows lie apart."""
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.zeros(3, 80, dtype=dtype)[:, :77]
        logits[2, 76], logits[0, 5] = 2.5, 1.5
        found = choose(logits, [Request(row=2, reported=0), Request(row=0, reported=-1)])
        assert [(each.id, each.peak) for each in found] == [(76, 2.5), (5, 1.5)]
        assert found[0].logit == 2.5


def test_what_the_kernel_does_not_read_is_refused():
    """An address beyond the logits, or numbers of another width, would be read as they come."""
    logits = torch.zeros(2, 64)
    assert not can_read(logits.double())
    assert not can_read(logits.t())
    with pytest.raises(ValueError, match="float64"):
        choose(logits.double(), [])
    for request in (Request(row=2), Request(row=-1), Request(row=0, reported=65)):
        with pytest.raises(ValueError, match="2 rows of 64"):
            choose(logits, [request])
    with pytest.raises(ValueError, match="20 can be reported"):
        choose(logits, [Request(row=0, reported=21)])
    for top_k in (0, -1):
        with pytest.raises(ValueError, match="left to draw"):
            choose(logits, [Request(row=0), Request(row=0, temperature=1.0, top_k=top_k)])
    for maxima in (torch.zeros(2, 2), torch.zeros(2, 3).bfloat16(), torch.zeros(2, 2).bfloat16().t()[:, :1]):
        with pytest.raises(ValueError, match="no maxima"):
            choose(logits, [Request(row=0)], maxima)


def test_ids_beyond_the_vocabulary_are_left_out():
    """A tokenizer may know of more tokens than the model has: nothing is written there."""
    logits = torch.zeros(1, 40)
    ids, times, biases = array("i", [40, -1, 2**31 - 1, 3]), array("i", [1] * 4), array("f", [9, 9, 9, 0.5])
    request = Request(row=0, reported=-1, repetition=2, presence=1)
    request.seen, request.seen_count = ids.buffer_info()
    request.said, request.said_count = ids.buffer_info()
    request.times, _ = times.buffer_info()
    request.biased, request.biased_count = ids.buffer_info()
    request.biases, _ = biases.buffer_info()
    (choice,) = choose(logits, [request])
    assert (choice.id, choice.adjusted_peak) == (0, 0)


def test_room_for_the_best_tokens_is_what_a_request_may_ask_for():
    """Else the kernel would write beyond it, or what the API promises be refused."""
    header = Path(structures.__file__).with_name("sampling.h").read_text()
    [in_header] = re.findall(r"kMostReported = (\d+);", header)
    assert int(in_header) == MOST_REPORTED == MAX_TOP_LOGPROBS
    assert len(Choice().top_ids) == len(Choice().top_logits) == MOST_REPORTED
