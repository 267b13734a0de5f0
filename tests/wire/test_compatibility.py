"""The schema against those that were released, and what counts as breaking one."""

import pytest

from compatibility import SCHEMA, breaks, find_buf, main, releases

BUF = find_buf() or ""
needs_buf = pytest.mark.skipif(not BUF, reason="pip install buf-bin: it compares schemas")

OLD = SCHEMA.read_text()
FRAME = "  uint64 id = 2;                        // From 1, +1 each, over all types.\n"
BREAKING = {
    "a field of another type": ("uint64 id = 2; ", "uint32 id = 2; "),
    "a field of another name": ("uint64 id = 2; ", "uint64 number = 2; "),
    "a field of another number": ("uint64 id = 2; ", "uint64 id = 12; "),
    "a field removed": (FRAME, ""),
    "a field that may be absent": ("uint64 id = 2; ", "optional uint64 id = 2; "),
    "a field that may not be absent any more": ("optional uint32 token_count", "uint32 token_count"),
    "a field that became a list": ("uint64 id = 2; ", "repeated uint64 id = 2; "),
    "a value of another number": ("FRAME_TYPE_FLUSH = 2;", "FRAME_TYPE_FLUSH = 4;"),
    "a value of another name": ("FRAME_TYPE_FLUSH = 2;", "FRAME_TYPE_COMMIT = 2;"),
    "a value removed": ("  PHASE_PREFILL = 2;      // The model reads the prompt.\n", ""),
    "a message of another name": ("message Bye {}", "message Goodbye {}"),
    "another package": ("package seedance.v1;", "package seedance.v2;"),
}


@needs_buf
@pytest.mark.parametrize("release", releases(), ids=lambda path: path.parent.name)
def test_schema_breaks_no_release(release) -> None:
    """Who speaks a released version goes on understanding and being understood."""
    assert breaks(BUF, release.read_text(), OLD) == []


@needs_buf
@pytest.mark.parametrize(("before", "after"), BREAKING.values(), ids=BREAKING)
def test_breaking_change_is_found(before: str, after: str) -> None:
    """Number, type, name and optionality of what was released are for ever."""
    assert before in OLD
    new = OLD.replace(before, after)
    assert breaks(BUF, OLD, new.replace("Bye bye", "Goodbye bye") if "Goodbye" in after else new)


@needs_buf
def test_additions_break_nothing() -> None:
    """Fields, values and messages of later minor versions may come."""
    new = OLD.replace(FRAME, f"{FRAME}  optional string of_the_future = 99;  // New.\n")
    new = new.replace("  PHASE_PREFILL = 2; ", "  PHASE_THINKING = 9;  // New.\n  PHASE_PREFILL = 2; ")
    assert breaks(BUF, OLD, f"{new}\n// New.\nmessage Later {{}}\n") == []


@needs_buf
def test_what_is_no_schema_is_said_to_be_none() -> None:
    """A check that cannot be made must not look passed."""
    with pytest.raises(ValueError, match="no schema"):
        breaks(BUF, OLD, "no schema at all")


@needs_buf
def test_command_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each release, and status 0 where none is broken."""
    assert main() == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{release.parent.name}: seedance.proto fits" for release in releases()
    ]


def test_there_is_a_release_to_compare_with() -> None:
    """The version of the package that is being worked on is compared with what it was last."""
    assert releases()
