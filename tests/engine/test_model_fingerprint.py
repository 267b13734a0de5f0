"""What makes two models the same to an answer that is to be continued."""

import copy
import hashlib
import json
import shutil

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file

from seedance_server.engine import model_fingerprint
from seedance_server.engine.model_fingerprint import (
    SAMPLING_REVISION,
    digest_tokenizer,
    digest_weights,
    fingerprint_model,
)
from seedance_server.engine.model_loader import load_model
from seedance_server.engine.sampler import Sampler, SamplingRow
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.token_history import TokenHistory
from seedance_server.engine.tokenizer_files import find_tokenizer_files
from tests import tokenizers_made
from tests.tiny_models import KINDS

# What each revision chose from the logits below. A new revision gets a new line; an old line never changes.
CHOICES = {1: "a3af97ed2015831c"}
SETTINGS = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 1.0, "repetition_penalty": 1.4},
    {"temperature": 0.0, "repetition_penalty": 1.1},
    {"temperature": 1.0, "presence_penalty": 2.0},
    {"temperature": 1.0, "frequency_penalty": 1.0},
    {"temperature": 1.0, "logit_bias": {7: 6.0, 8: -50.0}},
)


@pytest.fixture
def directory(tiny_directory, tmp_path):
    """A copy of a tiny model at another place, to be changed."""
    return shutil.copytree(tiny_directory("llama"), tmp_path / "another name")


def _fingerprint(directory, **options):
    return load_model(str(directory), **options).fingerprint


def _taken(loaded):
    """Of a loaded model on PyTorch's kernels, which leave its weights where they are."""
    files = find_tokenizer_files(loaded.tokenizer.name_or_path, loaded.tokenizer)
    digests = digest_weights(loaded.model), digest_tokenizer(loaded.tokenizer, files)
    return fingerprint_model(loaded.model.config, *digests, loaded.eos_token_ids, loaded.backend.name)


def test_fingerprints_of_different_models_differ(load_tiny):
    """An answer never goes on with another model unnoticed."""
    fingerprints = {load_tiny(kind).fingerprint for kind in KINDS}
    assert len(fingerprints) == len(KINDS)
    assert {len(fingerprint) for fingerprint in fingerprints} == {32}


def test_fingerprint_stays_when_the_model_moves_or_is_cut_into_other_files(load_tiny, directory):
    """A restart, another node or another download of the same model can go on."""
    expected = load_tiny("llama").fingerprint
    assert _fingerprint(directory) == expected
    weights = load_file(directory / "model.safetensors")
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, directory / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "model.safetensors").unlink()
    assert _fingerprint(directory) == expected


def _one_weight_by_one_bit(directory):
    weights = load_file(directory / "model.safetensors")
    name = sorted(weights)[len(weights) // 2]
    weights[name].view(torch.int32).flatten()[-1] ^= 1
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _rows_in_another_order(directory):
    weights = load_file(directory / "model.safetensors")
    name = next(name for name in sorted(weights) if "down_proj" in name)
    weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _columns_in_another_order(directory):
    weights = load_file(directory / "model.safetensors")
    name = next(name for name in sorted(weights) if "down_proj" in name)
    weights[name] = weights[name].flip(1).contiguous()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _another_rotation(directory):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["rope_theta"] *= 2
    path.write_text(json.dumps(config))


def _another_norm(directory):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 2e-6}))


def _another_end_token(directory):
    path = directory / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [0, 2, 70]}))


def _tokens_swapped(directory):
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(tokenizer))


def _another_prefix(directory):
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"add_prefix_space": True}))


@pytest.mark.parametrize(
    "change",
    [
        _one_weight_by_one_bit,
        _rows_in_another_order,
        _columns_in_another_order,
        _another_rotation,
        _another_norm,
        _another_end_token,
        _tokens_swapped,
        _another_prefix,
    ],
)
def test_fingerprint_changes_with_whatever_tokens_follow_from(change, load_tiny, directory):
    """The smallest change to the model's files that could change an answer is seen."""
    change(directory)
    assert _fingerprint(directory) != load_tiny("llama").fingerprint


def test_fingerprint_stays_with_another_chat_template(load_tiny, directory):
    """What a template made is kept as token ids."""
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": "{{ messages }}"}))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    assert _fingerprint(directory) == load_tiny("llama").fingerprint


def test_fingerprint_of_a_tokenizer_without_files_is_of_what_it_says():
    """One that was read from a GGUF file, say."""
    one, another = (
        copy.copy(maker()) for maker in (tokenizers_made.byte_level, tokenizers_made.llama_legacy)
    )
    assert digest_tokenizer(one) == digest_tokenizer(one) != digest_tokenizer(another)


def test_fingerprint_changes_with_the_dtype(load_tiny, directory):
    """Rounding chooses tokens, too."""
    assert _fingerprint(directory, dtype="bfloat16") != load_tiny("llama").fingerprint


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (model_fingerprint, "SAMPLING_REVISION"),
        (torch, "__version__"),
        (model_fingerprint.transformers, "__version__"),
    ],
)
def test_fingerprint_changes_with_the_engine(owner, name, load_tiny, monkeypatch):
    """Another release of what computes or samples need not choose the same tokens."""
    loaded = load_tiny("llama")
    monkeypatch.setattr(owner, name, "another")
    assert _taken(loaded) != loaded.fingerprint


def test_fingerprint_is_the_same_before_and_after_the_model_is_used(load_tiny):
    """Nothing that changes while a server runs has a part in it."""
    loaded = load_tiny("gemma3")
    loaded.tokenizer(["one", "and another"], padding=True)
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    assert _taken(evolve(loaded, tokenizer=tokenizer)) == loaded.fingerprint


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_fingerprint_takes_buffers_of_any_shape_and_dtype(shape, dtype, load_tiny):
    """A model may keep a flag or an empty list among its weights."""
    loaded = load_tiny("qwen2")
    model = copy.deepcopy(loaded.model)
    model.register_buffer("kept", torch.zeros(shape, dtype=dtype))
    fingerprints = {_taken(evolve(loaded, model=model))}
    if model.kept.numel():
        model.kept.view(-1)[-1] = 1
        fingerprints.add(_taken(evolve(loaded, model=model)))
    assert len(fingerprints | {loaded.fingerprint}) == 2 + bool(model.kept.numel())


def test_sampling_revision_stands_for_one_set_of_choices():
    """Whoever changes which token follows from the same logits, seed and position raises the revision."""
    vocabulary, chosen = 500, []
    sampler = Sampler(vocabulary)
    for position in range(40):
        # Far enough apart that no library's rounding decides.
        logits = torch.tensor(
            [(token * 7919 + position * 104729) % 1009 / 100 - 8 for token in range(vocabulary)]
        )
        rows = [
            SamplingRow(
                params=SamplingParams(**setting),
                seed=position * 2**40 - 5,
                position=position,
                counts=TokenHistory(3).counts([1, 2, 3, *chosen[-99:]]),
            )
            for setting in SETTINGS
        ]
        chosen += sampler.sample(logits.expand(len(rows), -1), rows).ids
    assert hashlib.sha256(str(chosen).encode()).hexdigest()[:16] == CHOICES[SAMPLING_REVISION]
