"""Penalties, biases and bans: equal to Transformers' processors, each row for itself."""

import pytest
import torch
from attrs import evolve, frozen
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from seedance_server.engine.penalties import adjust_logits, is_adjusted
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.streams import CpuStreams
from seedance_server.engine.token_history import TokenHistory

UPLOAD = CpuStreams(lambda: 0.0).upload

VOCABULARY = 50
PROMPT, OUTPUT = [1, 2, 2, 3], [3, 4, 4, 4]


def logits():
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1)) * 4


@frozen
class Row:
    params: SamplingParams
    prompt_ids: tuple[int, ...] = tuple(PROMPT)
    output_ids: tuple[int, ...] = tuple(OUTPUT)
    banned_ids: tuple[int, ...] = ()

    @property
    def counts(self):
        return TokenHistory(len(self.prompt_ids)).counts([*self.prompt_ids, *self.output_ids])


def adjusted(banned=(), **params):
    scores = logits()
    adjust_logits(scores[None], [Row(SamplingParams(**params), banned_ids=banned)], UPLOAD)
    return scores


@pytest.mark.parametrize("penalty", [0.5, 1.2, 3.0])
def test_repetition_penalty_equals_transformers(penalty):
    """Prompt and output count, once each, and a negative logit moves down as well."""
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUT]), logits()[None])[0]
    assert torch.equal(adjusted(repetition_penalty=penalty), expected)


def test_logit_bias_equals_transformers():
    """A bias is added to its token's logit."""
    processor = SequenceBiasLogitsProcessor([[[7], 2.5], [[9], -100.0]])
    expected = processor(torch.tensor([PROMPT]), logits()[None])[0]
    assert torch.equal(adjusted(logit_bias={7: 2.5, 9: -100}), expected)


def test_banned_ids_equal_transformers():
    """A banned token has no probability at all."""
    expected = SuppressTokensLogitsProcessor([5, 6], device="cpu")(torch.tensor([PROMPT]), logits()[None])[0]
    assert torch.equal(adjusted(banned=(5, 6)), expected)


def test_presence_and_frequency_penalties_follow_the_definition():
    """OpenAI's formula: presence once, frequency for each occurrence, in the output only."""
    expected = logits()
    expected[3] -= 0.5 + 1.5 * 1
    expected[4] -= 0.5 + 1.5 * 3
    assert torch.allclose(adjusted(presence_penalty=0.5, frequency_penalty=1.5), expected, atol=1e-6)


def test_penalties_change_nothing_when_there_is_no_output_yet():
    """The prompt does not count for presence and frequency."""
    scores = logits()
    nothing_yet = Row(SamplingParams(presence_penalty=2, frequency_penalty=2), output_ids=())
    assert not len(adjust_logits(scores[None], [nothing_yet], UPLOAD))
    assert torch.equal(scores, logits())


def test_rows_are_adjusted_each_by_its_own_request_and_the_places_are_told():
    """All kinds of penalties at once on some rows, others beside them: as each alone."""
    rows = [
        Row(SamplingParams(repetition_penalty=1.3, logit_bias={7: 2.0}), banned_ids=(5,)),
        Row(SamplingParams(), output_ids=(9,)),
        Row(SamplingParams(presence_penalty=1.0, repetition_penalty=0.7), prompt_ids=(8,), output_ids=(9, 3)),
    ]
    scores = logits().repeat(3, 1)
    changed = adjust_logits(scores, rows, UPLOAD)
    for line, row in zip(scores, rows, strict=True):
        alone = logits()
        adjust_logits(alone[None], [row], UPLOAD)
        assert torch.equal(line, alone)
    differs = (scores != logits()).view(-1).nonzero().flatten().tolist()
    assert sorted(set(changed.tolist())) == differs


def test_tokens_beyond_the_vocabulary_are_left_out():
    """A tokenizer may know of more tokens than the model has: the next row is somebody else's."""
    beyond = VOCABULARY + 2
    params = SamplingParams(
        repetition_penalty=1.5, presence_penalty=1, frequency_penalty=1, logit_bias={beyond: 3.0, 4: 0.5}
    )
    mixed = Row(params, (7, beyond), (beyond, 5), (beyond, VOCABULARY, 6))
    clean = Row(evolve(params, logit_bias={4: 0.5}), (7,), (5,), (6,))
    scores, expected = logits().repeat(3, 1), logits().repeat(3, 1)
    places = adjust_logits(scores, [mixed, Row(SamplingParams()), mixed], UPLOAD)
    assert torch.equal(places, adjust_logits(expected, [clean, Row(SamplingParams()), clean], UPLOAD))
    assert torch.equal(scores, expected)


@pytest.mark.parametrize(
    ("params", "banned", "expected"),
    [
        ({}, (), False),
        ({"temperature": 0.3, "top_p": 0.5}, (), False),
        ({}, (1,), True),
        ({"repetition_penalty": 1.1}, (), True),
        ({"presence_penalty": -1}, (), True),
        ({"frequency_penalty": 1}, (), True),
        ({"logit_bias": {1: 0}}, (), True),
    ],
)
def test_row_is_left_alone_when_nothing_would_change(params, banned, expected):
    """Rows without penalties don't pay for those that have them."""
    assert is_adjusted(SamplingParams(**params), banned) is expected
