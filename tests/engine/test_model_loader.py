import json
import os
import shutil
from functools import reduce

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, T5Config
from transformers.utils import logging as transformers_logging

from seedance_server.engine.errors import (
    InsufficientMemory,
    ModelFileError,
    ModelLoadError,
    ModelNotFound,
    UnsupportedModel,
)
from seedance_server.engine.model_loader import load_model
from tests.tiny_models import KINDS


@pytest.fixture
def broken(tiny_directory, tmp_path):
    """A copy of a tiny model, to be damaged."""
    return shutil.copytree(tiny_directory("llama"), tmp_path / "model")


def _edit_config(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _write_gguf(directory, file, kind=None):
    """A tiny Qwen2 in the words of llama.cpp; its matrices quantised as ``kind``."""
    config = json.loads((directory / "config.json").read_text())
    bpe = json.loads((directory / "tokenizer.json").read_text())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    writer = GGUFWriter(file, "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in bpe["merges"]])
    writer.add_eos_token_id(2)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, tensor in load_file(directory / "model.safetensors").items():
        theirs = reduce(lambda word, pair: word.replace(*pair), names.items(), name)
        if kind is not None and tensor.ndim == 2:
            writer.add_tensor(theirs, quantize(tensor.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_loader_reads_a_directory_and_tells_what_it_does(kind, tiny_directory):
    """A directory is ready to run, its facts are known, and each stage was announced."""
    told = []
    loaded = load_model(
        str(tiny_directory(kind)), progress=lambda line, share=None: told.append((line, share))
    )
    assert (loaded.eos_token_ids, loaded.context_length, loaded.vocab_size) == ({0, 2}, 512, 384)
    assert (loaded.name, loaded.geometry.dtype) == (tiny_directory(kind).name, torch.float32)
    stages = ["reading", "loading", "computing", "loading", "reading", "checking", "taking"]
    assert [line.split()[0] for line in dict.fromkeys(line for line, _ in told)] == stages
    shares = [share for line, share in told if "fingerprint" in line]
    assert (shares[0], shares) == (0.0, sorted(shares))
    assert 0.9 < shares[-1] < 1.0


def test_loader_knows_no_end_that_the_model_can_not_choose(tiny_directory, tmp_path):
    """A tokenizer may name a token as the end of an answer that the model has no logit for."""
    copied = shutil.copytree(tiny_directory("llama"), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.add_special_tokens({"eos_token": "[END]"})
    assert tokenizer.eos_token_id == 384
    tokenizer.save_pretrained(copied)
    assert load_model(str(copied)).eos_token_ids == {0, 2}


def test_loader_reads_a_gguf_file_as_the_model_it_was_made_from(tiny_directory, tmp_path, capfd):
    """A single file with weights and tokenizer is a model path as good as a directory."""
    file = tmp_path / "tiny.gguf"
    _write_gguf(tiny_directory("qwen2"), file)
    loaded, original = load_model(str(file), dtype="float32"), load_model(str(tiny_directory("qwen2")))
    assert capfd.readouterr() == ("", "")
    assert (loaded.name, loaded.context_length, loaded.vocab_size) == ("tiny", 512, 384)
    assert loaded.geometry == original.geometry
    assert 2 in loaded.eos_token_ids
    text = "The quick brown fox <|im_end|>"
    assert loaded.tokenizer(text).input_ids == original.tokenizer(text).input_ids
    expected = original.model.state_dict()
    for name, tensor in loaded.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)


def test_loader_unpacks_a_quantised_gguf_file(tiny_directory, tmp_path):
    """Each matrix is the one that its blocks stand for, dense: nothing is multiplied in blocks."""
    file, kind = tmp_path / "packed.gguf", GGMLQuantizationType.Q8_0
    _write_gguf(tiny_directory("qwen2"), file, kind)
    weights = load_model(str(file), dtype="float32").model.state_dict()
    stored = load_file(tiny_directory("qwen2") / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    unpacked = torch.from_numpy(dequantize(quantize(stored[name].numpy(), kind), kind))
    assert not torch.equal(unpacked, stored[name])
    torch.testing.assert_close(weights[name], unpacked, rtol=1e-6, atol=0)


def test_loader_prints_nothing_and_leaves_the_library_s_logging_as_it_was(tiny_directory, capfd):
    """The terminal belongs to the server."""
    before = transformers_logging.get_verbosity()
    load_model(str(tiny_directory("qwen2")))
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == before


@pytest.mark.parametrize(
    ("dtype", "expected"), [("auto", torch.float32), ("bfloat16", torch.bfloat16), ("float32", torch.float32)]
)
def test_loader_takes_the_dtype_that_was_asked_for(dtype, expected, tiny_directory):
    """auto leaves a float32 checkpoint as it is: exactness isn't given up unasked."""
    assert load_model(str(tiny_directory("llama")), dtype=dtype).geometry.dtype == expected


def test_loader_takes_bfloat16_for_half_checkpoints_where_the_processor_has_it(broken, monkeypatch):
    """auto follows the processor: emulated bfloat16 would be slower than float32."""
    weights = {name: tensor.bfloat16() for name, tensor in load_file(broken / "model.safetensors").items()}
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    _edit_config(broken, dtype="bfloat16")
    for native, expected in [(True, torch.bfloat16), (False, torch.float32)]:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda native=native: {"avx512_bf16": native})
        assert load_model(str(broken)).geometry.dtype == expected


@pytest.mark.parametrize(
    ("rope_type", "expected"), [("dynamic", 64), ("longrope", 64), ("linear", 512), ("default", 512)]
)
def test_loader_ends_the_context_where_neighbours_would_change_the_rotation(rope_type, expected, broken):
    """Rotary embeddings that depend on the longest row of a call would couple packed sequences."""
    half = json.loads((broken / "config.json").read_text())["hidden_size"] // 4 // 2
    rope = {
        "rope_type": rope_type,
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * half,
        "long_factor": [2.0] * half,
    }
    unused = {"dynamic": ["short", "long"], "linear": ["short", "long"], "default": ["short", "long"]}
    for name in unused.get(rope_type, []):
        del rope[f"{name}_factor"]
    if rope_type == "default":
        del rope["factor"]
    _edit_config(broken, rope_parameters=rope)
    assert load_model(str(broken)).context_length == expected


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "a/b/c", "nowhere.gguf", "", "white space"])
def test_loader_says_so_when_nothing_is_there(path):
    """A mistyped path is no hub id."""
    with pytest.raises(ModelNotFound, match="no such file"):
        load_model(path)


def test_loader_says_so_when_the_hub_does_not_deliver():
    """A plausible hub id that can't be had says what was tried, in one line."""
    with pytest.raises(ModelNotFound) as caught:
        load_model("someone/some-model")
    assert "hub" in str(caught.value)
    assert "\n" not in str(caught.value)


def _no_config(directory):
    (directory / "config.json").unlink()


def _config_is_no_json(directory):
    (directory / "config.json").write_text("{")


def _no_weights(directory):
    (directory / "model.safetensors").unlink()


def _weights_cut_short(directory):
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def _no_tokenizer(directory):
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").unlink()


def _shapes_differ(directory):
    _edit_config(directory, intermediate_size=100)


@pytest.mark.parametrize(
    "damage", [_no_config, _config_is_no_json, _no_weights, _weights_cut_short, _no_tokenizer, _shapes_differ]
)
def test_loader_names_the_trouble_with_incomplete_files(damage, broken):
    """Whatever is wrong with a directory becomes one typed error of one line."""
    damage(broken)
    with pytest.raises(ModelLoadError) as caught:
        load_model(str(broken))
    assert isinstance(caught.value, ModelFileError | UnsupportedModel)
    assert "\n" not in str(caught.value)
    assert str(broken) in str(caught.value)


def _lost_weight(directory):
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _unknown_architecture(directory):
    _edit_config(directory, model_type="nobody_knows_it")


def _own_code(directory):
    _edit_config(directory, model_type="own", auto_map={"AutoConfig": "code.Config"})


def _encoder_decoder(directory):
    T5Config().save_pretrained(directory)


def _encoder(directory):
    BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2).save_pretrained(directory)


def _quantised(directory):
    _edit_config(directory, quantization_config={"quant_method": "gptq", "bits": 4})


@pytest.mark.parametrize(
    "change", [_lost_weight, _unknown_architecture, _own_code, _encoder_decoder, _encoder, _quantised]
)
def test_loader_refuses_models_that_it_would_run_wrongly(change, broken):
    """Random weights in place of lost ones, code from the directory, encoders: none of them starts."""
    change(broken)
    with pytest.raises(UnsupportedModel) as caught:
        load_model(str(broken))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GGU", b"\x00" * 4096, b"GGUF" + bytes(range(256)) * 16, b"GGUF"])
def test_loader_refuses_a_file_that_is_no_gguf(content, tmp_path):
    """Random bytes under the right name, with or without the right beginning."""
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises((ModelFileError, UnsupportedModel)):
        load_model(str(file))


def test_loader_refuses_weights_beyond_the_memory_before_it_reads_them(tiny_directory, monkeypatch):
    """Too little memory is a sentence, not a killed process."""
    monkeypatch.setattr("seedance_server.engine.model_loader.available_memory", lambda _device: 1000)
    with pytest.raises(InsufficientMemory) as caught:
        load_model(str(tiny_directory("llama")))
    assert caught.value.available_bytes == 1000
    assert caught.value.needed_bytes > 300_000


def test_loader_has_the_weights_read_ahead(tiny_directory, monkeypatch):
    """What is mapped is read in small pieces: from a cold disk that takes as long as all the rest."""
    asked = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda file, *range_: asked.append((os.fstat(file).st_ino, range_))
    )
    load_model(str(tiny_directory("llama")))
    file = tiny_directory("llama") / "model.safetensors"
    assert asked == [(file.stat().st_ino, (0, 0, os.POSIX_FADV_WILLNEED))]
