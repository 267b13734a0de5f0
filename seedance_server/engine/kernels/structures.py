"""The structures that the kernels read, field for field as the headers declare them.

A structure holds addresses and keeps nothing alive: whoever fills one keeps what it points to.
"""

import ctypes

__all__ = [
    "MOST_REPORTED",
    "Choice",
    "Layer",
    "Linear",
    "Logits",
    "Model",
    "Norm",
    "Pages",
    "Reach",
    "Request",
    "Rotary",
    "Step",
    "Weights",
]

_address, _integer, _number, _flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32
_double = ctypes.c_double

MOST_REPORTED = 20
"""Best tokens that a choice has room for: kMostReported of sampling.h."""


class Weights(ctypes.Structure):
    """weights.h: a matrix in panels."""

    _fields_ = (("panels", _address), ("columns", _integer), ("width", _integer), ("bits", _integer))


class Pages(ctypes.Structure):
    """attention.h: one plane of the cache."""

    _fields_ = (
        *(("keys", _address), ("values", _address)),
        *(("heads", _integer), ("key_dim", _integer), ("value_dim", _integer)),
    )


class Step(ctypes.Structure):
    """attention.h: the rows of one step and the block tables of their sequences."""

    _fields_ = (
        *(("rows", _integer), ("sequences", _integer), ("block_size", _integer)),
        *(("row_sequence", _address), ("row_position", _address)),
        *(("blocks", _address), ("table_start", _address), ("rings", _address)),
    )


class Reach(ctypes.Structure):
    """attention.h: how a layer attends."""

    _fields_ = (("group", _integer), ("window", _integer), ("scaling", _number))


class Norm(ctypes.Structure):
    """rows.h: an RMS norm, or none."""

    _fields_ = (("weights", _address), ("epsilon", _number), ("rounds_first", _flag))


class Linear(ctypes.Structure):
    """decoder.h: a packed matrix with its bias, or without."""

    _fields_ = (("weights", Weights), ("bias", _address))


class Layer(ctypes.Structure):
    """decoder.h: one layer."""

    _fields_ = (
        *((name, Linear) for name in ("query_key_value", "output", "gate_up", "down")),
        *((name, Norm) for name in ("before_attention", "query", "key", "after_attention")),
        *((name, Norm) for name in ("before_feed_forward", "after_feed_forward")),
        *(("reach", Reach), ("plane", _integer), ("rotary", _integer)),
    )


class Rotary(ctypes.Structure):
    """decoder.h: cosines and sines of every position."""

    _fields_ = (("cosines", _address), ("sines", _address))


class Model(ctypes.Structure):
    """decoder.h: all layers and what is around them."""

    _fields_ = (
        *(("layers", _address), ("layer_count", _integer), ("hidden", _integer)),
        *(("query_heads", _integer), ("feed_forward", _integer), ("activation", _flag)),
        *(("final_norm", Norm), ("head", Weights)),
        *(("embeddings", _address), ("embedding_scale", _number)),
    )


class Logits(ctypes.Structure):
    """lines.h: rows to choose from."""

    _fields_ = (
        *(("data", _address), ("stride", _integer), ("columns", _integer)),
        *(("maxima", _address), ("wide", _flag)),
    )


class Request(ctypes.Structure):
    """lines.h: what is wanted of one row."""

    _fields_ = (
        ("row", _integer),
        *(("seen", _address), ("seen_count", _integer), ("repetition", _number)),
        *(("said", _address), ("times", _address), ("said_count", _integer)),
        *(("presence", _double), ("frequency", _double)),
        *(("biased", _address), ("biases", _address), ("biased_count", _integer)),
        ("allowed", _address),
        *(("temperature", _number), ("top_k", _integer), ("top_p", _double), ("min_p", _double)),
        *(("number", _double), ("reported", _flag)),
    )


class Choice(ctypes.Structure):
    """sampling.h: what came of it."""

    _fields_ = (
        *(("peak", _number), ("adjusted_peak", _number), ("id", _flag)),
        *(("logit", _number), ("log_total", _double)),
        *(("top_ids", _flag * MOST_REPORTED), ("top_logits", _number * MOST_REPORTED)),
    )
