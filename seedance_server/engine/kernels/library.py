"""Finds, or in a checkout builds, the kernels' shared library, and opens it if this processor can run it.

The invariant: code for features that the processor lacks is never entered, and a library of another version
is refused. Everything that is missing has its sentence in `KernelsMissing`, for the line in the log.
"""

import ctypes
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from seedance_server.engine.kernels.compiler import (
    LIBRARY_NAME,
    CompilerError,
    build_library,
    find_compiler,
    source_digest,
)

__all__ = [
    "INT8_FEATURES",
    "REQUIRED_FEATURES",
    "KernelsMissing",
    "find_library",
    "missing_features",
    "open_library",
]

REQUIRED_FEATURES = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx2", "fma")
"""As Linux spells them in /proc/cpuinfo; the compiler's flags are their twins."""
INT8_FEATURES = ("avx512vbmi",)
"""What weights of 8 bits need besides; int8.h names it where it does."""

_INTERFACE = 6  # of cpu.cpp
_HERE = Path(__file__).parent
_PROCESSOR = Path("/proc/cpuinfo")

_address, _integer, _flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "seedance_threads_start": (_address, (ctypes.c_int,)),
    "seedance_threads_stop": (None, (_address,)),
    "seedance_map": (_address, (_integer,)),
    "seedance_unmap": (None, (_address, _integer)),
    "seedance_packed_bytes": (_integer, (_address,)),
    "seedance_pack": (None, (_address, _address, _address)),
    "seedance_linear": (
        None,
        (
            *(_address, _address, _integer, _integer),  # threads, x, rows, stride of x
            *(_address, _address),  # weights, bias
            *(_address, _integer, _address),  # y, stride of y, maxima
        ),
    ),
    "seedance_attend": (
        None,
        (
            *(_address, _address, _address, _address, _integer),  # threads, step, reach, pages, query heads
            *(_address, _address, _address, _address),  # queries, keys, values, out
        ),
    ),
    "seedance_choose": (
        None,
        (_address, _address, _address, _integer, _address),  # threads, logits, requests, how many, choices
    ),
    "seedance_decoder_open": (_address, ()),
    "seedance_decoder_close": (None, (_address,)),
    "seedance_decoder_run": (
        None,
        (
            *(_address, _address, _address),  # decoder, threads, model
            *(_address, _address, _address),  # step, planes, rotary tables
            *(_address, _address, _integer),  # ids, wanted rows, how many
            *(_address, _address),  # logits, maxima
        ),
    ),
}


class KernelsMissing(Exception):  # noqa: N818 - a state of the machine, with its reason
    """The kernels can't run here; the text says why, in a few words."""


def missing_features(
    processor: Path = _PROCESSOR, required: tuple[str, ...] = REQUIRED_FEATURES
) -> list[str]:
    """Which of the required features the processor lacks.

    Args:
        processor: A file like /proc/cpuinfo; without one all features count as missing.
        required: What it should have.
    """
    try:
        lines = processor.read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return [feature for feature in required if feature not in flags]


def find_library(environment: Mapping[str, str], package: Path = _HERE) -> Path:
    """The library's path: in the package, where the wheel was built with one, or compiled from its sources.

    Args:
        environment: Says where the user's cache is, which keeps what was compiled.
        package: This directory.

    Raises:
        KernelsMissing: The package was built without it, or it can't be compiled.
    """
    packaged = package / LIBRARY_NAME
    if packaged.exists():
        return packaged
    if not (package / "cpu.cpp").exists():
        raise KernelsMissing("this package was built where no C++ compiler was")
    shared = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = Path(environment.get("SEEDANCE_CACHE") or Path(shared, "seedance")).expanduser()
    library = home / "kernels" / f"cpu-{source_digest(package)}.so"
    if not library.exists():
        compiler = find_compiler()
        if compiler is None:
            raise KernelsMissing("there is no C++ compiler to build them")
        try:
            build_library(compiler, package, library)
        except (CompilerError, OSError) as error:
            raise KernelsMissing(f"they can't be built: {error}") from error
    return library


@cache
def open_library() -> ctypes.CDLL:
    """The library of this process, its functions typed.

    Raises:
        KernelsMissing: It can't run here.
    """
    if missing := missing_features():
        raise KernelsMissing(f"the processor lacks {', '.join(missing)}")
    path = find_library(os.environ)
    try:
        library = ctypes.CDLL(str(path))
        interface = library.seedance_interface()
    except (OSError, AttributeError) as error:
        raise KernelsMissing(f"{path.name} can't be opened: {error}") from error
    if interface != _INTERFACE:
        raise KernelsMissing(f"{path.name} is of another version")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
