"""The parts of the specification that are made from the code."""

import re
from pathlib import Path

import pytest

from seedance_wire.closing import CLOSE_RULES
from seedance_wire.rules import CLIENT_KINDS, CONNECTION_TABLE, SERVER_KINDS, STREAM_TABLE
from specification import PAGE, SCHEMA, SECTIONS, main, rewritten


def test_specification_shows_what_the_code_does() -> None:
    """What implementers read is what this implementation does: `./nox -s generate` writes it."""
    page = PAGE.read_text()
    assert rewritten(page) == page


@pytest.mark.parametrize("name", SECTIONS)
def test_rewriting_mends_whatever_drifted(name: str) -> None:
    """Whatever stands in a made part is replaced, and nothing else is."""
    page = PAGE.read_text()
    begin = re.search(rf"<!-- begin {name}.*-->\n", page)
    assert begin is not None
    drifted = page[: begin.end()] + "drift" + page[begin.end() :]
    assert rewritten(drifted) == page


@pytest.mark.parametrize(
    "wrong", ["", PAGE.read_text() * 2, PAGE.read_text().replace("begin limits", "begin")]
)
def test_rewriting_refuses_a_page_without_its_parts(wrong: str) -> None:
    """A part that lost its marks would never be made again."""
    with pytest.raises(ValueError, match="each once"):
        rewritten(wrong)


def test_tables_have_a_row_for_each_message_and_a_cell_for_each_transition() -> None:
    """Nothing of the rules is left out of what is shown."""
    for name, table in (("connection table", CONNECTION_TABLE), ("stream table", STREAM_TABLE)):
        shown = [line.split(" | ") for line in SECTIONS[name]().splitlines()[2:]]
        kinds = {kind.__name__ for _, kind in table}
        assert {row[1] for row in shown} == kinds
        states = SECTIONS[name]().splitlines()[0].strip("| ").split(" | ")[2:]
        cells = sum(len(re.findall(r"\w", "".join(row[2:]))) > 0 for row in shown)
        assert cells == len(kinds)
        assert {state.value for state, _ in table} == set(states)
    assert {kind.__name__ for kind in (*CLIENT_KINDS, *SERVER_KINDS)} >= kinds


def test_close_codes_and_schema_are_whole() -> None:
    """Each code has its row, and each field and value of the schema is shown under its number."""
    codes = re.findall(r"^\| (\d{4}) ", SECTIONS["close codes"](), re.MULTILINE)
    assert codes == [str(int(code)) for code in CLOSE_RULES]
    schema = SCHEMA.read_text()
    numbered = re.findall(r"^ +.*?(\w+) = (\d+);", schema, re.MULTILINE)
    shown = re.findall(r"^\| (\d+) \| `(\w+)`", SECTIONS["schema"](), re.MULTILINE)
    assert [(name, number) for number, name in shown] == numbered
    assert len(numbered) > 200


def test_command_writes_the_page_and_says_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It mends the page in place, and changes nothing the second time."""
    page = tmp_path / "PROTOCOL.md"
    page.write_text(PAGE.read_text().replace("| 4400 |", "| 4444 |"))
    monkeypatch.setattr("specification.PAGE", page)
    assert main() == 0
    assert page.read_text() == PAGE.read_text()
    assert main() == 0
    assert capsys.readouterr().out == "PROTOCOL.md: close codes changed\nPROTOCOL.md: nothing changed\n"
