"""How busy this process, its accelerator and the network are, read from the system about once a second.

Processor time is this process's share of the processors that it may use; the network is what the machine
sends or receives against the speed of its links, loopback apart. Each reading is for the time since the one
before. Where something can't be read it counts as idle: quotas then stay at their base.

It must not know quotas or tenants.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import psutil
import structlog
import trio

from seedance_server.quota import Load

__all__ = ["DeviceReader", "LoadMeter", "open_device_reader", "watch_load"]

_log = structlog.get_logger(__name__)

_MEGABIT_BYTES = 125_000
_INTERVAL_S = 1.0
"""Between two readings: long enough for the counters to move, short beside a minute's quota."""


class DeviceReader(Protocol):
    """Reads an accelerator."""

    def busy(self) -> float:
        """The share of time in which it computed, from 0 to 1; of the busiest where there are several."""


class _NvmlReader:
    """NVIDIA's management library, through its Python binding."""

    def __init__(self, nvml: Any) -> None:
        nvml.nvmlInit()
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    def busy(self) -> float:
        rates = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
        return max(rates, default=0) / 100


def open_device_reader(load_binding: Callable[[], Any] | None = None) -> DeviceReader | None:
    """A reader for this machine's GPUs; None where there is none, or the ``gpu`` extra isn't installed.

    Args:
        load_binding: Imports the binding; None for ``pynvml``.
    """
    try:
        nvml = (load_binding or _import_pynvml)()
    except ImportError:
        return None
    try:
        return _NvmlReader(nvml)
    except nvml.NVMLError as error:
        _log.debug("no GPU to be read", reason=str(error))
        return None


def _import_pynvml() -> Any:
    import pynvml  # noqa: PLC0415 - an extra, and of no use without a GPU

    return pynvml


class LoadMeter:
    """Reads the load; call it from one thread at a time, it may block for milliseconds.

    Args:
        link_bytes_per_second: What counts as a full network where the system doesn't know its links' speed.
        device: Reads the accelerator; None where there is none.
        process: The process to be read, as psutil has it; None for this one.
        counters: Bytes sent and received by network interface, as psutil has them.
        links: Their state and speed, likewise.
        cores: Processors that the process may use.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        link_bytes_per_second: float,
        *,
        device: DeviceReader | None = None,
        process: Any = None,
        counters: Callable[[], Mapping[str, Any]] = lambda: psutil.net_io_counters(pernic=True),
        links: Callable[[], Mapping[str, Any]] = psutil.net_if_stats,
        cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link_bytes_per_second
        self._device = device
        self._process = psutil.Process() if process is None else process
        self._counters = counters
        self._links = links
        self._cores = cores or len(os.sched_getaffinity(0))
        self._clock = clock
        self._complained: set[str] = set()
        self._cpu_s, self._sent, self._received = 0.0, 0, 0
        self._read_s = self._clock()
        self.read()

    def read(self) -> Load:
        """The load since the last reading."""
        now_s = self._clock()
        spent_s = max(now_s - self._read_s, 1e-9)
        self._read_s = now_s
        cpu = max(self._try("processor", self._cpu, spent_s), self._try("device", self._busy, spent_s))
        return Load(cpu=_share(cpu), net=_share(self._try("network", self._net, spent_s)))

    def _try(self, name: str, read: Callable[[float], float], spent_s: float) -> float:
        try:
            return read(spent_s)
        except Exception as error:  # noqa: BLE001 - a figure less must not end the server
            if name not in self._complained:
                self._complained.add(name)
                _log.warning("the load can't be read: it counts as none", of=name, reason=repr(error))
            return 0.0

    def _cpu(self, spent_s: float) -> float:
        times = self._process.cpu_times()
        before, self._cpu_s = self._cpu_s, times.user + times.system
        return float((self._cpu_s - before) / spent_s / self._cores)

    def _busy(self, _spent_s: float) -> float:
        return 0.0 if self._device is None else self._device.busy()

    def _net(self, spent_s: float) -> float:
        links = {name: link for name, link in self._links().items() if link.isup and name != "lo"}
        counts = [count for name, count in self._counters().items() if name in links]
        before = self._sent, self._received
        self._sent = sum(count.bytes_sent for count in counts)
        self._received = sum(count.bytes_recv for count in counts)
        known = sum(link.speed for link in links.values() if link.speed > 0) * _MEGABIT_BYTES
        more = max(self._sent - before[0], self._received - before[1])
        return float(more / spent_s / (known or self._link))


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


async def watch_load(read: Callable[[], Load], note: Callable[[Load], None]) -> None:
    """Reads the load once a second, for ever, on a worker thread.

    Args:
        read: Reads it.
        note: Told of each reading.
    """
    while True:
        note(await trio.to_thread.run_sync(read))
        await trio.sleep(_INTERVAL_S)
