import pytest
import torch

from seedance_server.engine import backend_choice
from seedance_server.engine.backend_choice import choose_backend
from seedance_server.engine.errors import KernelsUnavailable, QuantizeUnavailable


class _Model:
    device, dtype = torch.device("cpu"), torch.bfloat16


@pytest.fixture
def obstacle(monkeypatch):
    """Something is in the way of the native kernels."""
    monkeypatch.setattr(backend_choice, "find_obstacle", lambda _model, _quantize: "the processor is old")


@pytest.fixture(params=[None, "its head has a bias"])
def rest(request):
    """Why the kernels don't run the model as a whole."""
    return request.param


@pytest.fixture
def native(monkeypatch, rest):
    """Nothing is; the backend itself is another test's subject."""
    monkeypatch.setattr(backend_choice, "find_obstacle", lambda _model, _quantize: None)
    monkeypatch.setattr(backend_choice, "find_decoder_obstacle", lambda _model: rest)
    made = {"none": object(), "int8": object()}
    monkeypatch.setattr(backend_choice, "NativeBackend", made.get)
    return made


def test_torch_takes_over_where_the_kernels_do_not_run(obstacle):
    """Every other machine is served as well, and its operator reads why it is slower."""
    backend, computing = choose_backend(_Model(), "auto")
    assert backend.name == "torch"
    assert computing == "PyTorch's kernels; not with the native ones, since the processor is old"


def test_kernels_asked_for_by_name_are_an_error_where_they_do_not_run(obstacle):
    """Who measures must not measure something else."""
    with pytest.raises(KernelsUnavailable, match="the processor is old"):
        choose_backend(_Model(), "native")


@pytest.mark.parametrize("kernels", ["auto", "native"])
def test_kernels_are_taken_where_they_run(kernels, native, rest):
    """By themselves, and said so, with how much of the model they compute."""
    whole = "linear layers and attention alone, since its head has a bias" if rest else "the whole decoder"
    assert choose_backend(_Model(), kernels) == (native["none"], f"the native kernels: {whole}")
    told = f"the native kernels: {whole}, its weights as int8"
    assert choose_backend(_Model(), kernels, "int8") == (native["int8"], told)


def test_torch_is_taken_when_asked_for(native):
    """The twin must be there to compare with."""
    backend, computing = choose_backend(_Model(), "torch")
    assert (backend.name, computing) == ("torch", "PyTorch's kernels, as asked for")


@pytest.mark.parametrize("kernels", ["auto", "native"])
def test_8_bits_are_an_error_where_nothing_multiplies_them(kernels, obstacle):
    """Who asked for half the memory must not get twice as much, and reads what to do."""
    with pytest.raises(QuantizeUnavailable, match=r"the processor is old; --quantize none serves"):
        choose_backend(_Model(), kernels, "int8")


def test_8_bits_and_pytorch_contradict_each_other(native):
    """PyTorch's kernels take weights as they are."""
    with pytest.raises(QuantizeUnavailable, match="--kernels torch asks for others"):
        choose_backend(_Model(), "torch", "int8")
