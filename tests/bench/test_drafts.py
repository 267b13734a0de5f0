"""Drafts against none, as the benchmark compares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafts import DRAWN, answer, requests
from engine.workload import TEXTS
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import load_model
from tests.tiny_models import build_tiny_model
from unseen_texts import UNSEEN

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_both_engines_give_the_same_tokens_and_one_in_fewer_steps(tmp_path: Path) -> None:
    """What is compared is time: the tokens, and how many, are the same."""
    model = load_model(str(build_tiny_model("qwen2", tmp_path)))

    def tokenize(text: str) -> list[int]:
        ids: list[int] = model.tokenizer(text)["input_ids"]
        return ids

    for kind in ("code", DRAWN):
        asked = requests(kind, 2, 0, 24, tokenize)
        assert len({request.prompt_ids for request in asked}) == 2
        plain, drafts = answer(
            [
                Engine(model, EngineConfig(kv_memory_bytes=2**24, speculative_tokens=tokens))
                for tokens in (0, 7)
            ],
            asked,
        )
        assert plain.token_ids == drafts.token_ids
        assert [len(ids) for ids in plain.token_ids] == [24, 24]
        assert plain.drafted == plain.accepted == 0 <= drafts.accepted <= drafts.drafted
        assert plain.seconds > 0 < drafts.seconds
    assert DRAWN not in TEXTS


def test_requests_take_one_unseen_text_after_the_other() -> None:
    """Each round asks for other ones until all have had their turn, whatever the number of streams."""
    texts = [
        bytes(request.prompt_ids).decode()
        for number in range(2)
        for request in requests("stories", 2, number, 24, lambda text: list(text.encode()))
    ]
    assert texts == list(UNSEEN["stories"])
    assert not UNSEEN.keys() & {DRAWN, *TEXTS}
