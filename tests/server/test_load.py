"""Tests of `seedance_server.load`."""

from types import SimpleNamespace

import pytest

from seedance_server.load import LoadMeter, open_device_reader
from seedance_server.quota import Load


class Machine:
    """Readings as psutil gives them, set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.cpu_s = 50.0
        self.bytes = {"eth0": (1000, 2000), "lo": (0, 0)}
        self.speed = {"eth0": 8, "lo": 0}

    def meter(self, **more: object) -> LoadMeter:
        return LoadMeter(
            1_000_000,
            process=SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=self.cpu_s, system=0.0)),
            counters=lambda: {
                name: SimpleNamespace(bytes_sent=sent, bytes_recv=received)
                for name, (sent, received) in self.bytes.items()
            },
            links=lambda: {
                name: SimpleNamespace(isup=True, speed=speed) for name, speed in self.speed.items()
            },
            cores=4,
            clock=lambda: self.now_s,
            **more,
        )


def test_load_is_what_was_done_since_the_last_reading() -> None:
    """Of the processors that there are, and of the links' speed."""
    machine = Machine()
    meter = machine.meter()
    machine.now_s += 2
    machine.cpu_s += 4  # 4 of 8 seconds
    machine.bytes["eth0"] = (1000 + 200_000, 2000 + 500_000)  # 250,000 of 1,000,000 a second
    assert meter.read() == Load(cpu=0.5, net=0.25)
    machine.now_s += 1
    assert meter.read() == Load()


def test_load_of_links_of_unknown_speed_is_against_the_setting() -> None:
    """As in most containers; loopback never counts."""
    machine = Machine()
    machine.speed["eth0"] = 0
    meter = machine.meter()
    machine.now_s += 1
    machine.bytes = {"eth0": (501_000, 2000), "lo": (10**9, 10**9)}
    assert meter.read() == Load(net=0.5)


def test_load_of_the_busiest_of_processor_and_device_counts() -> None:
    """On a GPU server the processors may be idle."""
    machine = Machine()
    meter = machine.meter(device=SimpleNamespace(busy=lambda: 0.9))
    machine.now_s += 1
    machine.cpu_s += 1
    assert meter.read() == Load(cpu=0.9)


def test_load_that_cannot_be_read_is_none_and_ends_nothing() -> None:
    """Counters that vanish or go back, a driver that fails."""
    machine = Machine()

    def fail() -> float:
        raise OSError(5, "driver")

    meter = machine.meter(device=SimpleNamespace(busy=fail))
    machine.now_s += 1
    machine.cpu_s = 0.0
    machine.bytes = {}
    assert meter.read() == Load()
    assert meter.read() == Load()


def test_load_of_this_process_can_be_read() -> None:
    """With the real psutil: shares, and work shows."""
    meter = LoadMeter(1e9)
    sum(number * number for number in range(300_000))
    load = meter.read()
    assert 0 < load.cpu <= 1
    assert 0 <= load.net <= 1


class Nvml:
    """The binding, without a driver."""

    class NVMLError(Exception):
        pass

    def __init__(self, *busy: int, works: bool = True) -> None:
        self.rates = busy
        self.works = works

    def nvmlInit(self) -> None:  # noqa: N802 - the binding's name, as below
        if not self.works:
            raise self.NVMLError("no driver")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.rates)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=self.rates[handle], memory=0)


def test_device_is_read_where_there_is_one() -> None:
    """The busiest counts; without a binding, a driver or a device there is nothing to read."""
    reader = open_device_reader(lambda: Nvml(10, 80))
    assert reader is not None
    assert reader.busy() == 0.8
    none = open_device_reader(Nvml)
    assert none is not None
    assert none.busy() == 0
    assert open_device_reader(lambda: Nvml(works=False)) is None

    def missing() -> Nvml:
        raise ImportError

    assert open_device_reader(missing) is None


@pytest.mark.parametrize("seconds", [0.0, 1e-12])
def test_two_readings_at_once_divide_by_nothing(seconds: float) -> None:
    """A clock may stand."""
    machine = Machine()
    meter = machine.meter()
    machine.now_s += seconds
    assert meter.read() == Load()
