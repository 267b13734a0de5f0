"""The playground in a real browser: what it says of exactly once is what happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripted_server import numbers
from seedance_wire.closing import CLOSE_RULES, Advice
from tests.browser.conftest import Wire
from tests.faults.server_process import ServerProcess
from tests.numbers_process import numbers_process, start_again

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow

OpenPage = Callable[..., "Page"]
KEY = "s3cret-key-of-16+"
ROOT = Path(__file__).parents[2]
FEW, MANY = {"max_tokens": "40"}, {"max_tokens": "300"}


def lane(page: Page, index: int = 0) -> Locator:
    return page.locator(f".lane[data-lane='{index}']")


def ask(page: Page, text: str = "count") -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def wait_for(page: Page, chip: str, index: int = 0) -> None:
    """Until the lane's chip says so."""
    from playwright.sync_api import expect

    expect(lane(page, index).locator(".chip")).to_have_text(chip, timeout=30_000)


def wait_tokens(page: Page, count: int, index: int = 0) -> None:
    """Until so many tokens have come."""
    page.wait_for_function(
        "([index, count]) => Number(document.querySelectorAll('.lane .tokens')[index].textContent) >= count",
        arg=[index, count],
    )


def text_of(page: Page, index: int = 0) -> str:
    """The text of the lane's last answer, as it stands in the page."""
    return str(lane(page, index).locator(".answer").last.evaluate("element => element.textContent"))


def test_page_streams_an_answer_and_shows_its_figures(server: ServerProcess, open_page: OpenPage):
    """The text is whole, its digest is the server's, and each instrument has something to say."""
    page = open_page(server)
    page.click("#open-settings")
    page.fill("[name=max_tokens]", "40")
    page.press("[name=max_tokens]", "Enter")
    ask(page)
    wait_for(page, "at its longest ✓")
    assert text_of(page) == "".join(numbers(40))
    assert page.text_content("#model") == "numbers"
    figures = [page.text_content(f"#figure-{name}") for name in ("first", "p50", "p99", "rate")]
    assert all(any(sign.isdigit() for sign in figure or "") for figure in figures)
    counts = page.locator("#histogram .count").all_text_contents()
    assert sum(int(count or 0) for count in counts) == 39  # gaps between 40 tokens
    assert page.locator("#stages li").count() == 1
    assert "to the first token" in str(page.text_content("#stages"))
    assert "Stream A has ended: 40 tokens." in str(page.text_content("#announcer"))


def test_page_stops_one_of_several_streams(server: ServerProcess, open_page: OpenPage):
    """All run over one connection, and each is its reader's own."""
    wire = Wire()
    page = open_page(server, wire=wire, settings={**MANY, "count": "3"})
    ask(page)
    wait_tokens(page, 20, 1)
    lane(page, 1).locator(".stop").click()
    wait_for(page, "stopped ✓", 1)
    for index in (0, 2):
        wait_for(page, "at its longest ✓", index)
        assert text_of(page, index) == "".join(numbers(300))
    stopped = text_of(page, 1)
    assert "".join(numbers(300)).startswith(stopped)
    assert 20 <= len(stopped.split()) < 300
    assert len(wire.urls) == 1


def test_page_loses_and_repeats_nothing_when_the_wire_is_cut(server: ServerProcess, open_page: OpenPage):
    """Cut twice by the keyboard, it resumes from what it has, and shows where."""
    wire = Wire()
    page = open_page(server, wire=wire, settings=MANY)
    ask(page)
    for tokens in (30, 60):
        wait_tokens(page, tokens)
        page.keyboard.press("Alt+x")
        wait_for(page, "cut off")
        page.wait_for_function("() => document.querySelector('#wire-state').dataset.phase === 'open'")
    wait_for(page, "at its longest ✓")
    assert text_of(page) == "".join(numbers(300))
    assert lane(page).locator(".seam").count() == 2
    assert "Cut 2 times" in str(page.text_content("#tally"))
    assert "Digests agree." in str(page.text_content("#tally"))
    assert len(wire.urls) == 3
    resumes = [message["last_processed_id"] for message in wire.of("resume")]
    assert len(resumes) == 2
    assert 30 <= resumes[0] < resumes[1]
    assert len(wire.of("submit")) == 1


def test_page_lets_the_model_wait_while_its_reader_takes_nothing(server: ServerProcess, open_page: OpenPage):
    """Held text is not acknowledged: the window fills, the server pauses; let go, all of it comes."""
    page = open_page(server, settings=MANY)
    ask(page)
    wait_tokens(page, 10)
    lane(page).locator(".hold").click()
    page.wait_for_function("() => document.querySelector('.lane .flow').textContent === 'PAUSE'")
    held = text_of(page)
    used, window = str(lane(page).locator(".window-words").text_content()).removeprefix("window ").split("/")
    assert used == window
    page.wait_for_timeout(200)
    assert text_of(page) == held
    lane(page).locator(".hold").click()
    wait_for(page, "at its longest ✓")
    assert text_of(page) == "".join(numbers(300))


def test_page_goes_on_when_the_server_is_killed_and_started_again(tmp_path: Path, open_page: OpenPage):
    """Nobody says goodbye, and the page sits it out."""
    with numbers_process(tmp_path, step_ms=15) as server:
        page = open_page(server, settings={"max_tokens": "150"}, expected="ERR_CONNECTION_REFUSED")
        ask(page)
        wait_tokens(page, 30)
        server.destroy()  # SIGKILL
        wait_for(page, "cut off")
        start_again(server)
        wait_for(page, "at its longest ✓")
        assert text_of(page) == "".join(numbers(150))
        assert lane(page).locator(".seam").count() == 1


def test_page_asks_for_a_key_and_keeps_it_to_itself(
    tmp_path: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
):
    """A wrong key is said to be wrong; the right one is in no address and no message, and stays if it may."""
    monkeypatch.setenv("SEEDANCE_API_KEY", KEY)
    with numbers_process(tmp_path, step_ms=2) as server:
        wire = Wire()
        page = open_page(server, wire=wire, settings=FEW, expected="401")
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        page.wait_for_function("() => document.querySelector('#key-problem').textContent !== ''")
        assert page.text_content("#key-problem") == "This key opens nothing."
        page.fill("#key", KEY)
        page.check("#keep-key")
        page.press("#key", "Enter")
        page.wait_for_function("() => document.querySelector('#wire-state').dataset.phase === 'open'")
        page.reload()
        ask(page)
        wait_for(page, "at its longest ✓")
        assert len(wire.urls) == 2
        assert len(wire.of("hello")) == 2
        assert KEY not in json.dumps([wire.urls, wire.sent, requests])
        assert KEY not in server.log
        assert KEY not in page.evaluate("JSON.stringify({...localStorage})")


def test_page_continues_a_text_where_a_model_has_no_turns(server: ServerProcess, open_page: OpenPage):
    """A base model is given the text as it is."""
    wire = Wire()
    page = open_page(server, wire=wire, settings=FEW)
    page.check("[name=mode][value=continue]", force=True)
    ask(page, "Once upon a time ")
    wait_for(page, "at its longest ✓")
    [submit] = wire.of("submit")
    assert submit["prompt"] == "Once upon a time "
    assert "messages" not in submit


def test_page_sends_the_conversation_so_far(server: ServerProcess, open_page: OpenPage):
    """The second question goes with the first and its answer, and the settings with both."""
    wire = Wire()
    page = open_page(
        server,
        wire=wire,
        settings={"max_tokens": "3", "system": "be short", "temperature": "0.5", "stop": "x\ny"},
    )
    for question in ("one", "two"):
        ask(page, question)
        wait_for(page, "at its longest ✓")
    submit = wire.of("submit")[1]
    assert submit["messages"] == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "0 1 2 "},
        {"role": "user", "content": "two"},
    ]
    assert (submit["temperature"], submit["stop"]) == (0.5, ["x", "y"])


def test_page_shows_what_is_wrong_with_a_request(server: ServerProcess, open_page: OpenPage):
    """The server's own words stand where the answer would."""
    page = open_page(server, settings={"top_p": "7"})
    ask(page)
    wait_for(page, "invalid request")
    assert "top_p" in str(lane(page).locator(".problem").text_content())


def test_page_does_not_send_what_the_server_would_not_read(server: ServerProcess, open_page: OpenPage):
    """A message over the limit would close the connection, and with it what else runs there."""
    wire = Wire()
    page = open_page(server, wire=wire, settings=FEW)
    page.wait_for_function("() => document.querySelector('#wire-state').dataset.phase === 'open'")
    ask(page, "x" * 262_144)
    wait_for(page, "too long")
    ask(page, "short")
    wait_for(page, "at its longest ✓")
    assert len(wire.of("submit")) == len(wire.urls) == 1


def test_page_leaves_nothing_running_when_it_is_closed(server: ServerProcess, open_page: OpenPage):
    """Nobody will come back for it: it says so, and the model is free for others at once."""
    page = open_page(server, settings=MANY, expected="404")
    ask(page)
    wait_tokens(page, 10)
    before = len(server.log)
    page.goto(f"http://127.0.0.1:{server.port}/nothing")
    while "peer left" not in server.log[before:]:
        page.wait_for_timeout(20)
    assert "code=1000" in server.log[before:]


def test_page_takes_what_a_model_says_as_text(server: ServerProcess, open_page: OpenPage):
    """Markup in a question or an answer stays markup to be read."""
    page = open_page(server, settings=FEW)
    ask(page, "<img src=x onerror=alert(1)><b>bold</b>")
    wait_for(page, "at its longest ✓")
    assert lane(page).locator(".asked").text_content() == "<img src=x onerror=alert(1)><b>bold</b>"
    assert lane(page).locator("b, img").count() == 0


def test_policy_would_be_noticed_if_it_were_violated(server: ServerProcess, open_page: OpenPage):
    """The other tests see no violation because there is none, not because nobody looks."""
    page = open_page(server, expected="violat|TrustedHTML")
    noticed: list[str] = []
    page.on("console", lambda line: noticed.append(line.text))
    page.evaluate("document.body.setAttribute('style', 'color: red')")
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<p>'")
    page.wait_for_timeout(50)
    assert any("style-src" in line for line in noticed)


@pytest.mark.parametrize(
    ("width", "height", "scheme"),
    [(320, 640, "light"), (390, 844, "dark"), (768, 1024, "light"), (1280, 720, "dark")],
)
def test_page_fits_its_screen(
    server: ServerProcess, open_page: OpenPage, width: int, height: int, scheme: str
):
    """Nothing sticks out sideways, the prompt is on the first screen, and the colours are the system's."""
    page = open_page(server, settings=FEW, viewport={"width": width, "height": height}, color_scheme=scheme)
    ask(page)
    wait_for(page, "at its longest ✓")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#send").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width
    assert box["y"] + box["height"] <= height
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(246, 245, 241)" if scheme == "light" else "rgb(16, 19, 22)")


def test_every_control_has_a_name(server: ServerProcess, open_page: OpenPage):
    """Whoever hears the page instead of seeing it knows what each button and field is."""
    page = open_page(server, settings={**FEW, "count": "4"})
    ask(page)
    wait_for(page, "at its longest ✓", 3)
    named = controls_of(page)
    page.click("#open-settings")  # what is behind a dialog is out of reach
    named += controls_of(page)
    assert len(named) > 30
    assert [role for role, name in named if not name.strip()] == []


def controls_of(page: Page) -> list[tuple[str, str]]:
    """Role and name of everything that can be operated or is a picture, as assistive technology has it."""
    roles = {"button", "textbox", "spinbutton", "combobox", "radio", "meter", "image", "Canvas"}
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    return [
        (node["role"]["value"], str(node.get("name", {}).get("value", "")))
        for node in tree
        if not node["ignored"] and node["role"]["value"] in roles
    ]


@pytest.fixture(scope="module")
def vectors() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((ROOT / "wire/vectors/cursor.json").read_text())["cases"]
    return cases


def test_cursor_of_the_page_agrees_with_the_vectors(
    server: ServerProcess, open_page: OpenPage, vectors: list[dict[str, Any]]
):
    """The page applies frames by the rule that every implementation has."""
    page = open_page(server)
    verdicts = page.evaluate(
        """async (cases) => {
          const { Cursor } = await import("/playground/wire.js");
          return cases.map((one) => new Cursor(one.epoch, one.applied, one.applied_bytes).judge(one.frame));
        }""",
        vectors,
    )
    assert verdicts == [case["verdict"] for case in vectors]


def test_page_reacts_to_close_codes_as_the_table_says(server: ServerProcess, open_page: OpenPage):
    """It never fights over a session, and never hammers a server that is full."""
    page = open_page(server)
    words = {
        Advice.RAISE: "stop",
        Advice.SHED: "stop",
        Advice.MOVE: "move",
        Advice.WAIT: "wait",
        Advice.RESUME: "resume",
    }
    codes = [int(code) for code in CLOSE_RULES]
    reactions = page.evaluate(
        """async (codes) => {
          const { reactionTo } = await import("/playground/wire.js");
          return codes.map(reactionTo);
        }""",
        codes,
    )
    assert dict(zip(codes, reactions, strict=True)) == {
        int(code): words[rule.advice] for code, rule in CLOSE_RULES.items()
    }


def test_waits_of_the_page_have_full_jitter_under_a_cap(server: ServerProcess, open_page: OpenPage):
    """Pages that lost one server together do not come back together."""
    page = open_page(server)
    waits = page.evaluate(
        """async () => {
          const { fullJitter } = await import("/playground/wire.js");
          const waits = (attempt) => [fullJitter(attempt, () => 0), fullJitter(attempt, () => 1)];
          return [0, 1, 2, 5, 20, 1000].map(waits);
        }"""
    )
    assert waits == [[0, 250], [0, 500], [0, 1000], [0, 8000], [0, 10_000], [0, 10_000]]
