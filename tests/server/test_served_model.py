"""Tests of `seedance_server.served_model`: the seam to the real engine, with a tiny model."""

import subprocess
import sys

import pytest
import torch

from seedance_server.config import Config
from seedance_server.engine.errors import InvalidParameter, ModelNotFound
from seedance_server.engine.progress import silent
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.served_model import ServedModel, load_served_model
from seedance_wire.messages import ChatMessage
from tests.tiny_models import build_tiny_model


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> ServedModel:
    threads = torch.get_num_threads()
    path = build_tiny_model("qwen2", tmp_path_factory.mktemp("m") / "tiny")
    lines = []
    config = Config(
        model_path=str(path),
        kv_memory_bytes=1 << 22,
        max_context_tokens=64,
        served_model_name="mine",
        threads=1,
    )
    model = load_served_model(config, lambda line, _share=None: lines.append(line))
    assert lines[0] == "starting PyTorch"
    assert len(lines) > 1
    assert torch.get_num_threads() == 1
    torch.set_num_threads(threads)
    return model


@pytest.mark.slow
def test_served_model_is_what_the_settings_say(served: ServedModel) -> None:
    """Name, context and vocabulary as clients are told."""
    assert (served.name, served.context_tokens) == ("mine", 64)
    assert served.vocab_size >= 256


@pytest.mark.slow
def test_served_model_encodes_and_generates(served: ServedModel) -> None:
    """From the wire's messages to text, through the real template, engine and sampler."""
    ids = served.encoder.encode_chat([ChatMessage(role="user", content="Hi")], parse_special=False)
    assert all(0 <= token_id < served.vocab_size for token_id in ids)
    with pytest.raises(InvalidParameter):
        served.encoder.encode_chat([ChatMessage(role="user", content=None)], parse_special=False)
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    served.engine.check(len(ids), params)
    served.engine.add(GenerationRequest(id=1, prompt_ids=tuple(ids), params=params, arrival_s=0))
    tokens = []
    while served.engine.has_work():
        for output in served.engine.step():
            tokens += output.token_ids
    assert len(tokens) == 5
    assert served.encoder.encode_text("Hi", parse_special=False)


def test_served_model_that_is_not_there_is_a_typed_error(tmp_path) -> None:
    """The operator's mistake, not a traceback."""
    with pytest.raises(ModelNotFound):
        load_served_model(Config(model_path=str(tmp_path / "none")), silent)


@pytest.mark.slow
def test_server_starts_to_speak_before_pytorch_is_imported() -> None:
    """A wrong flag or a taken port is reported at once."""
    code = "import seedance_server.__main__, sys; print({'torch', 'transformers'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"
