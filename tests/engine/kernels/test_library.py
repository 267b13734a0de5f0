import ctypes
import shutil

import pytest

from seedance_server.engine.kernels import library as module
from seedance_server.engine.kernels.compiler import LIBRARY_NAME, CompilerError
from seedance_server.engine.kernels.library import (
    INT8_FEATURES,
    REQUIRED_FEATURES,
    KernelsMissing,
    find_library,
    missing_features,
    open_library,
)


def test_features_that_the_processor_lacks_are_named(tmp_path):
    """Code that the processor can't run must not be entered; the operator reads which feature is missing."""
    file = tmp_path / "cpuinfo"
    file.write_text("model name : x\nflags : fpu " + " ".join(REQUIRED_FEATURES) + "\n")
    assert missing_features(file) == []
    file.write_text(file.read_text().replace("avx512_bf16", "avx512_fp16"))
    assert missing_features(file) == ["avx512_bf16"]
    assert missing_features(file, INT8_FEATURES) == ["avx512vbmi"]
    assert missing_features(tmp_path / "absent") == list(REQUIRED_FEATURES)


def test_library_of_the_package_comes_first(tmp_path):
    """What a wheel was built with is used as it is; nothing is compiled on a server."""
    (tmp_path / LIBRARY_NAME).touch()
    assert find_library({}, tmp_path) == tmp_path / LIBRARY_NAME


def test_package_without_library_and_sources_says_so(tmp_path):
    """A wheel that was built without a compiler runs, on torch."""
    with pytest.raises(KernelsMissing, match="no C\\+\\+ compiler was"):
        find_library({}, tmp_path)


def test_checkout_compiles_once_into_the_user_s_cache(tmp_path, monkeypatch):
    """The first start after an edit pays for the compiler, no other one does."""
    made = []

    def build(_command, sources, target):
        made.append(sources)
        target.parent.mkdir(parents=True)
        target.touch()

    monkeypatch.setattr(module, "find_compiler", lambda: ["c++"])
    monkeypatch.setattr(module, "build_library", build)
    package = tmp_path / "package"
    package.mkdir()
    (package / "cpu.cpp").touch()
    environment = {"SEEDANCE_CACHE": str(tmp_path / "cache")}
    first = find_library(environment, package)
    assert find_library(environment, package) == first
    assert made == [package]
    (package / "cpu.cpp").write_text("// edited")
    assert first.is_relative_to(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert find_library(environment, package) != first


def test_checkout_without_compiler_says_so(tmp_path, monkeypatch):
    """No compiler is a reason, not a failure."""
    (tmp_path / "cpu.cpp").touch()
    monkeypatch.setattr(module, "find_compiler", lambda: None)
    with pytest.raises(KernelsMissing, match="no C\\+\\+ compiler"):
        find_library({"SEEDANCE_CACHE": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize(
    "error", [CompilerError("c++ fails: error: out of patience"), PermissionError(13, "no")]
)
def test_checkout_that_cannot_be_built_says_why(tmp_path, monkeypatch, error):
    """The line in the log holds the compiler's own reason."""

    def build(*_):
        raise error

    (tmp_path / "cpu.cpp").touch()
    monkeypatch.setattr(module, "find_compiler", lambda: ["c++"])
    monkeypatch.setattr(module, "build_library", build)
    with pytest.raises(KernelsMissing, match="can't be built"):
        find_library({"SEEDANCE_CACHE": str(tmp_path)}, tmp_path)


def test_library_is_not_opened_on_another_processor(monkeypatch):
    """The question comes before the library is touched."""
    monkeypatch.setattr(module, "missing_features", lambda: ["avx512_bf16"])
    monkeypatch.setattr(module, "find_library", None)
    with pytest.raises(KernelsMissing, match="the processor lacks avx512_bf16"):
        open_library.__wrapped__()


def test_file_that_is_no_library_is_refused(tmp_path, monkeypatch):
    """A damaged cache costs the kernels, not the server."""
    (tmp_path / "cpu.so").write_bytes(b"not a library")
    monkeypatch.setattr(module, "missing_features", list)
    monkeypatch.setattr(module, "find_library", lambda _environment: tmp_path / "cpu.so")
    with pytest.raises(KernelsMissing, match=r"cpu\.so can't be opened"):
        open_library.__wrapped__()


def test_library_of_another_version_is_refused(library, monkeypatch):
    """Functions are never called with another version's arguments."""
    monkeypatch.setattr(module, "_INTERFACE", -1)
    with pytest.raises(KernelsMissing, match="another version"):
        open_library.__wrapped__()


def test_every_function_of_the_library_has_its_types(library):
    """An untyped pointer would be cut to 32 bits."""
    for name in module._SIGNATURES:
        assert getattr(library, name).argtypes is not None
    assert isinstance(library, ctypes.CDLL)
