import shutil
from pathlib import Path

import pytest

from seedance_server.engine.kernels import compiler
from seedance_server.engine.kernels.compiler import (
    CompilerError,
    build_library,
    find_compiler,
    source_digest,
)

SOURCES = Path(compiler.__file__).parent


def test_compiler_is_the_one_that_the_user_names(monkeypatch, tmp_path):
    """`CXX` is how builds are told about compilers, its options included."""
    own = tmp_path / "my-c++"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setattr(compiler.platform, "system", lambda: "Linux")
    monkeypatch.setattr(compiler.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("CXX", f"{own} -pipe")
    assert find_compiler() == [str(own), "-pipe"]
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    assert find_compiler() is None


def test_no_compiler_is_found_for_another_kind_of_processor(monkeypatch):
    """The kernels are written for x86-64; elsewhere nothing is compiled in vain."""
    monkeypatch.setattr(compiler.platform, "machine", lambda: "aarch64")
    assert find_compiler() is None


def test_digest_changes_with_any_source(tmp_path):
    """A library from before an edit is never taken for one from after it."""
    for source in (*SOURCES.glob("*.h"), SOURCES / "cpu.cpp"):
        shutil.copy(source, tmp_path)
    before = source_digest(tmp_path)
    assert before == source_digest(SOURCES)
    for source in tmp_path.iterdir():
        text = source.read_text()
        source.write_text(text + "//")
        assert source_digest(tmp_path) != before
        source.write_text(text)


@pytest.mark.parametrize("broken", ["#error not today\n", "this is no C++"])
def test_build_that_fails_says_why_and_leaves_nothing(broken, tmp_path):
    """Half a library must not be found by the next start."""
    if (command := find_compiler()) is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "cpu.cpp").write_text(broken)
    with pytest.raises(CompilerError, match=r"error"):
        build_library(command, tmp_path, tmp_path / "out" / "cpu.so")
    assert list((tmp_path / "out").iterdir()) == []


def test_compiler_that_does_not_start_is_an_error_of_its_own(tmp_path):
    """Whoever names a wrong compiler is told which."""
    with pytest.raises(CompilerError, match="no-such-compiler"):
        build_library([str(tmp_path / "no-such-compiler")], tmp_path, tmp_path / "cpu.so")
