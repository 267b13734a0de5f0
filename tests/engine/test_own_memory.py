import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.model_loader import load_model
from seedance_server.engine.own_memory import own_weights
from tests.tiny_models import KINDS


@pytest.fixture
def checkpoint(tiny_directory, tmp_path):
    """A tiny model in bfloat16, in a directory that nobody else has mapped."""

    def copy(kind):
        directory = shutil.copytree(tiny_directory(kind), tmp_path / "model")
        file, config = directory / "model.safetensors", directory / "config.json"
        save_file(
            {name: tensor.bfloat16() for name, tensor in load_file(file).items()},
            file,
            metadata={"format": "pt"},
        )
        config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}))
        return directory

    return copy


def _is_mapped(directory: Path) -> bool:
    return str(directory) in Path("/proc/self/maps").read_text()


def test_own_weights_are_the_same_and_no_file_is_mapped_any_more(checkpoint):
    """Bit for bit, with the ones that modules share still shared; the mapping goes with its last view."""
    directory = checkpoint("gemma3")
    model = AutoModelForCausalLM.from_pretrained(directory)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert _is_mapped(directory)
    own_weights(model)
    assert not _is_mapped(directory)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_loaded_model_holds_its_weights_once(kind, kernels, checkpoint):
    """Neither the file's pages nor a second copy stay behind, whatever computes the model."""
    try:
        open_library()
    except KernelsMissing as missing:
        if kernels == "native":
            pytest.skip(str(missing))
    directory = checkpoint(kind)
    loaded = load_model(str(directory), dtype="bfloat16", kernels=kernels)
    assert not _is_mapped(directory)
    held = sum(tensor.nbytes for tensor in loaded.model.parameters())
    if kernels == "native":
        held += loaded.backend._memory.size_bytes
    stored = sum(tensor.nbytes for tensor in load_file(directory / "model.safetensors").values())
    assert 0.95 <= held / stored <= 1.3  # the kernels keep norms and biases apart
