"""The demo model's cache: whole or absent, made once, never from weights that fail their checksum."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from attrs import define, field

from seedance_server import demo_model
from seedance_server.demo_model import (
    DemoModelError,
    Weights,
    cache_directory,
    main,
    packaged_weights,
    prepare,
)

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@define
class Bench:
    """A small stand-in for the packages and the conversion, counting what is asked of them."""

    cache: Path
    papers: tuple[Path, ...]
    content: bytes = CONTENT
    stated: str = SHA256
    conversions: int = 0
    lines: list[str] = field(factory=list)
    fail_with: Exception | None = None
    converting: threading.Event = field(factory=threading.Event)
    may_finish: threading.Event = field(factory=threading.Event)

    def weights(self) -> Weights:
        return Weights(lambda path: path.write_bytes(self.content), self.stated, self.papers)

    def convert(self, gguf: Path, directory: Path, report: demo_model.Report) -> None:
        self.conversions += 1
        self.converting.set()
        assert self.may_finish.wait(10)
        if self.fail_with:
            raise self.fail_with
        (directory / "model.safetensors").write_bytes(gguf.read_bytes())

    def prepare(self, expected_sha256: str = SHA256) -> Path:
        return prepare(
            self.cache,
            report=self.lines.append,
            weights=self.weights,
            converter=self.convert,
            expected_sha256=expected_sha256,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    terms = tmp_path / "GEMMA_TERMS.html"
    terms.write_text("the terms")
    made = Bench(cache=tmp_path / "cache", papers=(terms,))
    made.may_finish.set()
    return made


def test_prepare_converts_once_when_called_twice(bench: Bench):
    """A converted model is used again, without asking for the weights."""
    first = bench.prepare()
    second = bench.prepare()
    assert first == second
    assert bench.conversions == 1
    assert (first / "model.safetensors").read_bytes() == CONTENT


def test_prepare_ships_and_shows_the_terms_when_it_converts(bench: Bench):
    """The licence travels beside the weights and is announced before they are used."""
    made = bench.prepare()
    assert (made / "GEMMA_TERMS.html").read_text() == "the terms"
    assert any(
        "Gemma Terms of Use" in line and str(made / "GEMMA_TERMS.html") in line for line in bench.lines
    )


@pytest.mark.parametrize("side", ["package", "ours"])
def test_prepare_refuses_weights_when_a_checksum_differs(bench: Bench, side: str):
    """Weights must match both the package's checksum and ours before anything reads them."""
    other = hashlib.sha256(b"other").hexdigest()
    if side == "package":
        bench.stated = other
    with pytest.raises(DemoModelError, match="SHA-256"):
        bench.prepare(expected_sha256=other if side == "ours" else SHA256)
    assert bench.conversions == 0


def test_prepare_leaves_nothing_behind_when_the_conversion_fails(bench: Bench):
    """A directory under the final name is always whole; a failure is one typed error and can be repeated."""
    bench.fail_with = ValueError("no such tensor")
    with pytest.raises(DemoModelError, match="no such tensor"):
        bench.prepare()
    assert [path.name for path in bench.cache.iterdir() if path.suffix != ".lock"] == []
    bench.fail_with = None
    assert (bench.prepare() / "model.safetensors").exists()


@pytest.mark.parametrize("damage", ["truncated", "missing", "no stamp", "not json", "json of another shape"])
def test_prepare_converts_again_when_the_cached_model_is_damaged(bench: Bench, damage: str):
    """A cache that is not whole is replaced, never served."""
    made = bench.prepare()
    weights, stamp = made / "model.safetensors", made / demo_model.STAMP
    match damage:
        case "truncated":
            weights.write_bytes(CONTENT[:3])
        case "missing":
            weights.unlink()
        case "no stamp":
            stamp.unlink()
        case "not json":
            stamp.write_text("{")
        case _:
            stamp.write_text("[]")
    assert bench.prepare() == made
    assert bench.conversions == 2
    assert weights.read_bytes() == CONTENT


def test_prepare_removes_what_a_killed_process_left_when_it_converts(bench: Bench):
    """Temporary directories of a killed conversion do not pile up in the cache."""
    made = bench.prepare()
    (made / demo_model.STAMP).unlink()
    left = bench.cache / f".{made.name}-killed"
    left.mkdir()
    bench.prepare()
    assert not left.exists()


def test_prepare_converts_once_when_two_run_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """The second caller waits for the first, says so, and takes its result."""
    monkeypatch.setattr(demo_model, "LOCK_POLL_S", 0.001)
    bench.may_finish.clear()
    results: list[Path] = []
    callers = [threading.Thread(target=lambda: results.append(bench.prepare())) for _ in range(2)]
    callers[0].start()
    assert bench.converting.wait(10)
    waiting = threading.Event()
    say = bench.lines.append
    monkeypatch.setattr(bench, "lines", _Announcing(say, waiting))
    callers[1].start()
    assert waiting.wait(10)
    bench.may_finish.set()
    for caller in callers:
        caller.join(10)
    assert len(results) == 2
    assert results[0] == results[1]
    assert bench.conversions == 1


class _Announcing:
    """A list of lines that sets an event when somebody says that it waits."""

    def __init__(self, say, waiting: threading.Event):
        self.say, self.waiting = say, waiting

    def append(self, line: str) -> None:
        self.say(line)
        if "waiting" in line:
            self.waiting.set()


def test_prepare_gives_up_when_the_lock_is_never_released(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Waiting for another process is bounded."""
    monkeypatch.setattr(demo_model, "LOCK_TIMEOUT_S", -1.0)
    bench.may_finish.clear()
    holder = threading.Thread(target=bench.prepare)
    holder.start()
    assert bench.converting.wait(10)
    with pytest.raises(DemoModelError, match="another process has held"):
        bench.prepare()
    bench.may_finish.set()
    holder.join(10)


def test_prepare_refuses_when_the_disk_is_too_small(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """A full disk is told before a gigabyte is written, not by a half-written file."""
    monkeypatch.setattr(demo_model, "DISK_NEEDED_BYTES", 10**18)
    with pytest.raises(DemoModelError, match="are free"):
        bench.prepare()


def test_prepare_refuses_when_the_cache_cannot_be_written(bench: Bench):
    """An unusable cache directory is one clear error."""
    bench.cache.write_text("a file, not a directory")
    with pytest.raises(DemoModelError, match="cannot write"):
        bench.prepare()


def test_packaged_weights_names_the_extra_when_it_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    """Whoever lacks the package is told the command that brings it."""
    monkeypatch.setattr(demo_model, "PACKAGE", "no_such_package_at_all")
    with pytest.raises(DemoModelError, match=r"seedance-server\[demo\]"):
        packaged_weights()


def test_packaged_weights_carry_our_checksum_when_installed():
    """The real package states the checksum that this release was made for, and brings its terms."""
    pytest.importorskip(demo_model.PACKAGE)
    weights = packaged_weights()
    assert weights.sha256 == demo_model.GGUF_SHA256
    assert all(paper.is_file() for paper in weights.papers)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SEEDANCE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/seedance")),
        ({"XDG_CACHE_HOME": ""}, Path("~/.cache/seedance").expanduser()),
    ],
)
def test_cache_directory_follows_the_environment_when_set(environment: dict[str, str], expected: Path):
    """Our own variable wins, then the user's cache directory, then its default."""
    assert cache_directory(environment) == expected


def test_main_prints_the_path_alone_on_stdout_when_ready(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """`$(python -m seedance_server.demo_model)` is usable as an argument."""
    monkeypatch.setattr(demo_model, "prepare", lambda cache, *, report: report("working") or cache / "model")
    assert main(["--cache", str(bench.cache)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{bench.cache / 'model'}\n"
    assert captured.err == "working\n"


def test_main_exits_with_one_line_when_the_model_is_not_installed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """An expected failure is one line on stderr and status 2, without a traceback."""
    monkeypatch.setattr(demo_model, "PACKAGE", "no_such_package_at_all")
    assert main(["--cache", str(bench.cache)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("demo model: error: ")
    assert captured.err.count("\n") == 1
