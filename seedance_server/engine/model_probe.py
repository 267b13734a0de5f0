"""Proof, at load time, that our attention computes what the model's own does.

Transformers' attention interface doesn't say everything about a model: windows, sinks, states carried from
row to row. So nothing is guessed from the architecture's name. Two short prompts run through the model as it
came, one by one, and then packed side by side through the interface, under plain causal attention with the
windows that the model itself asks for. Only if the logits agree is the model accepted, and what was seen on
the way (one call per layer, its shapes, its window) is the geometry of the KV cache.

It knows the model as a callable, and nothing of files.
"""

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch.nn.functional import scaled_dot_product_attention

from seedance_server.engine.attention import STEP_ARGUMENT, UnsupportedAttention, use_packed_attention
from seedance_server.engine.kv_cache import KvGeometry

__all__ = ["Probed", "PromptRecorder", "packed_logits", "probe_model"]

_LENGTHS = (24, 9)
"""Tokens of the two prompts: odd and even, unequal, and short, since large models pay for each."""
_LONGEST_WINDOW = 64
"""Windows up to this are filled and passed by the longer prompt."""
_TOLERANCE_FP32 = 1e-3
_TOLERANCE_HALF = 0.1
"""Largest relative distance of logits. Rounding alone gives 1e-6 in fp32 and up to 0.03 in bf16; a layer that
attends to the wrong rows gives 0.3 and more."""
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


@frozen(eq=False)
class Probed:
    """What was seen of a model that passed.

    Attributes:
        geometry: What its layers keep per token.
        prompts: Token ids of each prompt.
        logits: Of all their rows, side by side, but the first.
    """

    geometry: KvGeometry
    prompts: list[torch.Tensor]
    logits: torch.Tensor


@torch.inference_mode()
def probe_model(model: Any) -> Probed:
    """Switch ``model`` to our attention for good, if that gives the same logits.

    Args:
        model: A Transformers causal language model in its final dtype and place.

    Returns:
        What was seen, for whoever computes the same by other means.

    Raises:
        UnsupportedAttention: The model can't be run by this engine.
    """
    config = model.config.get_text_config(decoder=True)
    unknown = set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS
    if unknown:
        raise UnsupportedAttention(f"it has layers of another kind: {', '.join(sorted(unknown))}")
    prompts = _probe_prompts(model)
    lengths = tuple(map(len, prompts))
    own = [model(input_ids=prompt[None], use_cache=False).logits[0] for prompt in prompts]

    use_packed_attention(model)
    step = PromptRecorder(lengths)
    try:
        packed = packed_logits(model, prompts, step)
    except TypeError as error:
        raise UnsupportedAttention(f"its forward call refuses packed rows: {error}") from error
    geometry = step.geometry(config)
    expected = torch.cat(own)[1:].float()
    if packed.shape != expected.shape:
        raise UnsupportedAttention("it doesn't compute the logits of chosen rows alone")
    tolerance = _TOLERANCE_FP32 if packed.dtype == torch.float32 else _TOLERANCE_HALF
    distance = float((packed.float() - expected).norm() / expected.norm())
    if not distance <= tolerance:  # NaN included
        raise UnsupportedAttention(f"its logits are off by {distance:.1%} under packed attention")
    return Probed(geometry, prompts, packed)


def packed_logits(model: Any, prompts: Sequence[torch.Tensor], step: object) -> torch.Tensor:
    """Logits of all rows of the prompts, side by side, but the first.

    Args:
        model: One that is switched to packed attention.
        prompts: Token ids of each.
        step: An `AttentionStep` over these rows.
    """
    ids = torch.cat(list(prompts))
    positions = torch.cat([torch.arange(len(prompt), device=ids.device) for prompt in prompts])
    logits: torch.Tensor = model(
        input_ids=ids[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=torch.arange(1, len(ids), device=ids.device),
        **{STEP_ARGUMENT: step},
    ).logits[0]
    return logits


def _probe_prompts(model: Any) -> list[torch.Tensor]:
    """The prompts that a model is judged by, as token ids."""
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) or 0
    lengths = (max(_LENGTHS[0], window + 8 if window <= _LONGEST_WINDOW else 0), _LENGTHS[1])
    return [torch.arange(11, 11 + 7 * n, 7, device=model.device) % config.vocab_size for n in lengths]


@define
class PromptRecorder:
    """An `AttentionStep` without a cache: attends within each prompt and notes what each layer asked for.

    Attributes:
        lengths: Tokens of each prompt; their rows stand side by side.
        calls: What each layer asked for.
    """

    lengths: tuple[int, ...]
    calls: list[tuple[int, int | None, tuple[int, int, int], torch.dtype]] = field(factory=list)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        self.calls.append((layer, window, (key.shape[1], key.shape[3], value.shape[3]), key.dtype))
        prompts = torch.arange(len(self.lengths)).repeat_interleave(torch.tensor(self.lengths))
        row = torch.arange(len(prompts))
        seen = (prompts[:, None] == prompts) & (row <= row[:, None])
        if window is not None:
            seen &= row > row[:, None] - window
        shared = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
        mask = seen.to(query.device)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling).transpose(1, 2)

    def geometry(self, config: Any) -> KvGeometry:
        """What was seen, if it is one ordinary attention per layer."""
        layers = [layer for layer, *_ in self.calls]
        if layers != list(range(config.num_hidden_layers)):
            raise UnsupportedAttention(
                f"it has {config.num_hidden_layers} layers, but {len(layers)} use ordinary attention"
            )
        if len({(shape, dtype) for _, _, shape, dtype in self.calls}) > 1:
            raise UnsupportedAttention("its layers keep keys and values of different shapes")
        windows = tuple(window for _, window, _, _ in self.calls)
        kinds = getattr(config, "layer_types", None) or ()
        if kinds and [kind == "sliding_attention" for kind in kinds] != [bool(window) for window in windows]:
            raise UnsupportedAttention("its layers don't ask for the windows that its config names")
        _, _, (heads, key_dim, value_dim), dtype = self.calls[0]
        return KvGeometry(windows, heads=heads, key_dim=key_dim, value_dim=value_dim, dtype=dtype)
