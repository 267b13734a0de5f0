"""Compiles the CPU kernels into one shared library.

Used by the build of the server's wheel, which loads this file by its path, and in a checkout when the kernels
are first wanted. So it knows the standard library and nothing else, and a machine without a compiler is no
error of its own: `find_compiler` says so.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["LIBRARY_NAME", "CompilerError", "build_library", "find_compiler", "source_digest"]

LIBRARY_NAME = "cpu.so"
"""What the library is called inside a package."""

_SOURCES = ("cpu.cpp", "*.h")
# For one level of processor features, whoever's machine builds it; the loader asks for the same features. No
# fast maths: sums are written in the order that they are to be added in.
_FEATURES = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mavx2", "-mfma")
_FLAGS = ("-std=c++20", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-pthread", *_FEATURES)
_TIME_LIMIT_S = 300  # two seconds on an idle core, a minute on a busy one; a start must not hang on it


class CompilerError(Exception):
    """The compiler is there, and failed; the text says how."""


def find_compiler() -> list[str] | None:
    """The C++ compiler's command, `$CXX` before those by common names; None without one for this machine."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return None
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen if shutil.which(chosen[0]) else None
    return next(([path] for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def source_digest(sources: Path) -> str:
    """Names what `build_library` would make of this directory's sources, in hexadecimal digits."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in sorted(path for pattern in _SOURCES for path in sources.glob(pattern)):
        digest.update(f"\n{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build_library(compiler: list[str], sources: Path, target: Path) -> None:
    """Compile the sources into ``target``, which appears whole or not at all.

    Args:
        compiler: From `find_compiler`.
        sources: Directory of ``cpu.cpp`` and its headers.
        target: The library; its directory is made if missing.

    Raises:
        CompilerError: It can't be compiled, or takes longer than five minutes.
        OSError: The directory of ``target`` can't be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        made = Path(directory, target.name)
        command = [*compiler, *_FLAGS, str(sources / "cpu.cpp"), "-o", str(made)]
        try:
            done = subprocess.run(  # noqa: S603 - the user's own compiler on our own sources
                command, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerError(f"{compiler[0]} doesn't run: {error}") from error
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise CompilerError(f"{compiler[0]} fails: {reason}")
        made.replace(target)
