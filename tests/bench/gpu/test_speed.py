from types import SimpleNamespace

from torch.autograd import DeviceType

from gpu.speed import kernels_of


def test_kernels_are_counted_once():
    """An operator's event has its kernels' time as well, and a named range that of all that ran in it."""
    events = [
        SimpleNamespace(key="aten::mm", device_type=DeviceType.CPU, is_user_annotation=False),
        SimpleNamespace(key="gemm", device_type=DeviceType.CUDA, is_user_annotation=False),
        SimpleNamespace(key="a range", device_type=DeviceType.CUDA, is_user_annotation=True),
        SimpleNamespace(key="Memcpy HtoD", device_type=DeviceType.CUDA, is_user_annotation=False),
    ]
    assert [event.key for event in kernels_of(events)] == ["gemm", "Memcpy HtoD"]
