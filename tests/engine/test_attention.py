import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, LlamaConfig, LlamaForCausalLM

from seedance_server.engine.attention import STEP_ARGUMENT, UnsupportedAttention, use_packed_attention

SHAPE = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


class _Spy:
    def __init__(self):
        self.calls = []

    def attend(self, layer, query, key, value, *, scaling, window):
        self.calls.append((layer, tuple(query.shape), tuple(key.shape), scaling, window))
        return torch.zeros_like(query).transpose(1, 2)


def _llama():
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_attention_heads=4, num_key_value_heads=2)).eval()


def test_packed_attention_hands_each_call_to_the_step_of_its_forward():
    """The step object travels with the call: two engines over one model never meet."""
    model = _llama()
    use_packed_attention(model)
    first, second = _Spy(), _Spy()
    ids = torch.arange(5)[None]
    for step in (first, second, second):
        model(input_ids=ids, use_cache=False, **{STEP_ARGUMENT: step})
    assert first.calls == [(0, (1, 4, 5, 4), (1, 2, 5, 4), 0.5, None)]
    assert len(second.calls) == 2


def test_packed_attention_refuses_a_call_without_a_step():
    """A model that drops unknown arguments must not run on silently."""
    model = _llama()
    use_packed_attention(model)
    with pytest.raises(UnsupportedAttention, match="keyword arguments"):
        model(input_ids=torch.arange(5)[None], use_cache=False)


@pytest.mark.parametrize("extra", ["softcap", "s_aux", "position_bias"])
def test_packed_attention_refuses_what_it_does_not_compute(extra):
    """Soft caps, sinks and biases change the result; they are refused by name, never ignored."""
    model = _llama()
    use_packed_attention(model)
    with pytest.raises(UnsupportedAttention, match=extra):
        model(input_ids=torch.arange(5)[None], use_cache=False, **{STEP_ARGUMENT: _Spy(), extra: 30.0})


def test_packed_attention_refuses_a_model_that_cannot_be_switched():
    """Attention written into the model can't be replaced from outside."""
    config = BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(UnsupportedAttention, match="AttentionInterface"):
        use_packed_attention(BloomForCausalLM(config))
