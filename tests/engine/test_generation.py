import pytest

from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.errors import NumericalError
from seedance_server.engine.generation import Generation
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import (
    FinishReason,
    GenerationRequest,
    Sequence,
    StageTiming,
    TokenLogprob,
)
from tests.tiny_models import build_tiny_tokenizer

EOS = 2  # <|im_end|>


@pytest.fixture(scope="module")
def tokenizer():
    return build_tiny_tokenizer()


def _generation(tokenizer, *, limit=100, preprocess_s=0.0, **params):
    request = GenerationRequest(
        id=1, prompt_ids=(5, 6), params=SamplingParams(**params), arrival_s=10.0, preprocess_s=preprocess_s
    )
    sequence = Sequence(request, order=0, seed=0, limit=limit, table=BlockTable(([],)))
    return Generation(sequence, tokenizer, {EOS, 0})


def _accept_all(generation, ids):
    """Text and the last output; ends at a finish."""
    text = ""
    for token_id in ids:
        output = generation.accept(token_id)
        assert output.token_ids == (token_id,)
        text += output.text
        if output.finish:
            break
    return text, output.finish


def test_generation_ends_at_an_end_token_which_counts_but_is_not_shown(tokenizer):
    """The usual end: reason stop, no stop named, the token in the usage."""
    generation = _generation(tokenizer)
    ids = tokenizer("The quick").input_ids
    text, finish = _accept_all(generation, [*ids, EOS, 99])
    assert (text, finish.reason, finish.stop) == ("The quick", FinishReason.STOP, None)
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (2, len(ids) + 1)


def test_generation_goes_on_after_an_end_token_when_told_to(tokenizer):
    """ignore_eos: the end token is a token like any other, shown as nothing."""
    ids = [EOS, *tokenizer("fox").input_ids]
    text, finish = _accept_all(_generation(tokenizer, ignore_eos=True), ids)
    assert (text, finish) == ("fox", None)


def test_generation_names_the_stop_token_that_ended_it(tokenizer):
    """A stop token of the request ends like an end token, and is named."""
    last = tokenizer("fox").input_ids[-1]
    text, finish = _accept_all(
        _generation(tokenizer, stop_token_ids=(last,)), [*tokenizer("The ").input_ids, last]
    )
    assert (text, finish.reason, finish.stop) == ("The ", FinishReason.STOP, last)


@pytest.mark.parametrize(
    ("stops", "shown", "matched"),
    [(("own fox",), "The quick br", "own fox"), (("quick", "qu"), "The ", "qu"), (("lazy",), None, None)],
)
def test_generation_cuts_a_stop_string_wherever_tokens_split_it(tokenizer, stops, shown, matched):
    """Nothing of a stop string is shown, not even for a moment."""
    text, finish = _accept_all(_generation(tokenizer, stop=stops), tokenizer("The quick brown fox").input_ids)
    if matched is None:
        assert (text, finish) == ("The quick brown fox", None)
    else:
        assert (text, finish.reason, finish.stop) == (shown, FinishReason.STOP, matched)


def test_generation_shows_what_was_held_back_when_the_length_ends_it(tokenizer):
    """What looked like the start of a stop string is text after all."""
    ids = tokenizer("The quick brown").input_ids
    text, finish = _accept_all(_generation(tokenizer, limit=2 + len(ids), stop=("brown fox",)), ids)
    assert (text, finish.reason) == ("The quick brown", FinishReason.LENGTH)


def test_generation_shows_half_a_character_once_when_the_length_cuts_it(tokenizer):
    """A character of several tokens is held back, and ends as one U+FFFD if it stays broken."""
    ids = tokenizer("a🚀").input_ids
    assert len(ids) > 2
    generation = _generation(tokenizer, limit=2 + len(ids) - 1)
    text, finish = _accept_all(generation, ids[:-1])
    assert (text, finish.reason) == ("a�", FinishReason.LENGTH)


def test_generation_finds_a_stop_string_in_the_text_it_held_back(tokenizer):
    """The broken end of an answer can complete a stop string."""
    ids = tokenizer("a🚀").input_ids[:-1]
    text, finish = _accept_all(_generation(tokenizer, stop=("�",)), [*ids, EOS])
    assert (text, finish.reason, finish.stop) == ("a", FinishReason.STOP, "�")


def test_generation_bans_end_tokens_until_it_is_long_enough(tokenizer):
    """min_tokens is a promise: no end token can be sampled before."""
    generation = _generation(tokenizer, min_tokens=2, stop_token_ids=(7,))
    assert generation.banned_ids() == (0, EOS, 7)
    _accept_all(generation, [50, 51])
    assert generation.banned_ids() == ()
    assert _generation(tokenizer, min_tokens=2, ignore_eos=True).banned_ids() == ()


def test_generation_looks_for_stop_strings_only_beyond_min_tokens(tokenizer):
    """A stop string in the first min_tokens tokens is text, as in vLLM."""
    (the,) = tokenizer("the").input_ids
    text, finish = _accept_all(_generation(tokenizer, min_tokens=2, stop=("the",)), [the] * 4)
    assert (text, finish.stop, finish.usage.completion_tokens) == ("thethe", "the", 3)


def test_generation_passes_log_probabilities_on_with_their_token(tokenizer):
    """A log-probability arrives with the token it belongs to, even if the text is held back."""
    logprob = TokenLogprob(50, "O", -1.5)
    assert _generation(tokenizer).accept(50, logprob).logprobs == (logprob,)


def test_generation_tells_the_stages_of_the_first_token(tokenizer):
    """The stages add up to the time from arrival to the first token, and later tokens don't change them."""
    generation = _generation(tokenizer, preprocess_s=0.5)
    generation.note_scheduled(12.0)
    generation.note_scheduled(13.0)
    generation.note_sampled(14.0, 14.25)
    first = generation.accept(50)
    assert first.text
    generation.note_sampled(20.0, 21.0)
    assert generation.accept(50).timing is None
    finish = generation.accept(EOS).finish
    assert (
        first.timing
        == finish.timing
        == StageTiming(queue_s=1.5, preprocess_s=0.5, prefill_s=2.0, first_decode_s=0.25)
    )


def test_generation_counts_the_steps_until_text_is_shown_as_its_first_decode(tokenizer):
    """What the client waits for is text, not a token: a held back beginning takes more than one step."""
    generation = _generation(tokenizer, stop=("The fox",))
    generation.note_scheduled(10.0)
    for number, token_id in enumerate(tokenizer("The quick").input_ids):
        generation.note_sampled(12.0 + number, 12.5 + number)
        shown = generation.accept(token_id).text
        if shown:
            break
    assert number > 0
    generation.note_sampled(50.0, 51.0)
    timing = generation.abandon(FinishReason.CANCELLED).finish.timing
    assert (timing.prefill_s, timing.first_decode_s) == (2.0, 0.5 + number)


def test_generation_that_is_taken_up_tells_the_stages_of_its_first_new_token(tokenizer):
    """Text from before counts as prompt."""
    generation = _generation(tokenizer)
    assert generation.accept(50).text
    generation.note_scheduled(12.0)
    generation.note_sampled(14.0, 14.5)
    assert generation.accept(51).text
    generation.note_sampled(20.0, 21.0)
    timing = generation.abandon(FinishReason.CANCELLED).finish.timing
    assert (timing.prefill_s, timing.first_decode_s) == (2.0, 0.5)


def test_generation_abandoned_before_its_first_step_has_an_empty_end(tokenizer):
    """A cancel while queued still gets its end: no tokens, no stages."""
    output = _generation(tokenizer).abandon(FinishReason.CANCELLED)
    assert (output.text, output.token_ids, output.finish.reason) == ("", (), FinishReason.CANCELLED)
    assert output.finish.timing == StageTiming()


def test_generation_keeps_its_text_when_an_error_ends_it(tokenizer):
    """The error is named, and text held back isn't lost."""
    generation = _generation(tokenizer, stop=("fox jumps",))
    text, _ = _accept_all(generation, tokenizer("The fox").input_ids)
    error = NumericalError("NaN")
    output = generation.abandon(FinishReason.ERROR, error)
    assert text + output.text == "The fox"
    assert output.finish.error is error
