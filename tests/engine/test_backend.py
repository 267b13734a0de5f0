import pytest
import torch

from seedance_server.engine.backend import TorchBackend
from seedance_server.engine.kv_cache import KvGeometry
from seedance_server.engine.model_probe import Probed
from seedance_server.engine.streams import CpuStreams


@pytest.fixture
def backend():
    return TorchBackend()


def test_torch_backend_leaves_the_model_as_it_is(backend, load_tiny):
    """The twin that others are tested against computes with the stock modules."""
    loaded = load_tiny("llama")
    model = loaded.model
    modules = list(model.modules())
    backend.prepare(model)
    backend.adopt(model, Probed(loaded.geometry, [], torch.empty(0)))
    assert all(one is other for one, other in zip(modules, model.modules(), strict=True))


def test_torch_backend_opens_a_cache_of_the_size_asked_for(backend):
    """What the engine counts in blocks is what there is."""
    geometry = KvGeometry((None, None), heads=2, key_dim=4, value_dim=8, dtype=torch.float32)
    cache = backend.open_cache(
        geometry,
        total_blocks=10,
        block_size=4,
        longest_chunk=8,
        device=torch.device("cpu"),
        streams=CpuStreams(lambda: 0.0),
    )
    assert [plane.shape for plane in cache.keys] == [(40, 2, 4)] * 2
    assert [plane.shape for plane in cache.values] == [(40, 2, 8)] * 2
