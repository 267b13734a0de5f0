"""Reading a tokenizer: what Transformers makes of it, in fewer passes."""

import gc
import json
import shutil
import types
from pathlib import Path

import pytest
from transformers import AutoTokenizer, tokenization_utils_base

from seedance_server.engine import tokenizer_files
from seedance_server.engine.tokenizer_files import find_tokenizer_files, read_tokenizer
from tests.tokenizers_made import CORPUS, MAKERS

# Classes of Transformers by what the tokenizer is made like; None is its general one.
CLASSES = (None, "GemmaTokenizer", "LlamaTokenizer", "Qwen2Tokenizer", "XGLMTokenizer")
TURNS = [{"role": "user", "content": "The fox <tool> says\n  你好"}, {"role": "assistant", "content": "own"}]


def _save(maker, directory, cls):
    maker().save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config if cls is None else config | {"tokenizer_class": cls}))


def _outcome(call, *args, **options):
    try:
        return call(*args, **options)
    except Exception as error:  # noqa: BLE001 - a class that doesn't fit the file says so, whoever reads it
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_tokenizer_is_what_the_library_makes_of_its_files(maker, cls, tmp_path):
    """Encoding, decoding, templates and special tokens, or the same refusal, whatever the class."""
    _save(maker, tmp_path, cls)
    expected, found = (
        _outcome(read, str(tmp_path), local_files_only=True)
        for read in (AutoTokenizer.from_pretrained, read_tokenizer)
    )
    assert type(found) is type(expected)
    if isinstance(expected, str):
        assert found == expected
        return
    assert found.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert found.special_tokens_map == expected.special_tokens_map
    assert found.added_tokens_decoder == expected.added_tokens_decoder
    assert found.decode(range(300)) == expected.decode(range(300))
    for text in (*CORPUS, "<s><think> x</s>"):
        assert _outcome(found.encode, text) == _outcome(expected.encode, text)
    assert _outcome(found.apply_chat_template, TURNS) == _outcome(expected.apply_chat_template, TURNS)


@pytest.fixture
def gemma(tiny_directory, tmp_path):
    """A directory whose tokenizer is of a class that the library builds from parts of the file."""
    directory = shutil.copytree(tiny_directory("llama"), tmp_path / "model")
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "GemmaTokenizer"}))
    return directory


def test_tokenizer_file_is_parsed_once(gemma, monkeypatch):
    """Each time takes seconds where the vocabulary is large; and the library gets its own reader back."""
    parsed = []
    counting = types.SimpleNamespace(
        **vars(json) | {"loads": lambda text: parsed.append(len(text)) or json.loads(text)}
    )
    monkeypatch.setattr(tokenizer_files, "json", counting)
    monkeypatch.setattr(tokenization_utils_base, "json", counting)
    monkeypatch.setattr("transformers.tokenization_utils_tokenizers.json", counting)
    read_tokenizer(str(gemma), local_files_only=True)
    assert parsed.count((gemma / "tokenizer.json").stat().st_size) == 1
    assert tokenization_utils_base.json is counting


def test_library_gets_its_reader_back_when_reading_fails(gemma):
    """A damaged file is the library's to name."""
    (gemma / "tokenizer.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        read_tokenizer(str(gemma), local_files_only=True)
    assert tokenization_utils_base.json is json


def test_tokenizer_is_read_without_the_collector(gemma, monkeypatch):
    """Seconds of walking a large vocabulary are saved, and afterwards it is as it was."""
    seen = []
    read = AutoTokenizer.from_pretrained
    monkeypatch.setattr(
        AutoTokenizer, "from_pretrained", lambda *a, **o: seen.append(gc.isenabled()) or read(*a, **o)
    )
    read_tokenizer(str(gemma), local_files_only=True)
    assert seen == [False]
    assert gc.isenabled()


def test_tokenizer_keeps_no_second_copy_of_the_vocabulary(gemma):
    """Some keep what they were made from, as Python objects: twice the size of the rest."""
    tokenizer = read_tokenizer(str(gemma), local_files_only=True)
    assert type(tokenizer).__name__ == "GemmaTokenizer"
    assert (tokenizer._vocab, tokenizer._merges) == (None, None)
    assert len(tokenizer.get_vocab()) >= 384


def test_files_of_a_tokenizer_are_found_where_it_was_read_from(gemma, monkeypatch):
    """In a directory and in the hub's cache alike: the same files make the same fingerprint."""
    tokenizer = read_tokenizer(str(gemma), local_files_only=True)
    files = find_tokenizer_files(str(gemma), tokenizer)
    assert [file.name for file in files] == ["tokenizer.json", "tokenizer_config.json"]
    cached = {file.name: str(file) for file in files}
    monkeypatch.setattr(tokenizer_files, "try_to_load_from_cache", lambda _repo, name: cached.get(name))
    assert find_tokenizer_files("owner/model", tokenizer) == files


def test_files_are_none_when_the_tokenizer_was_made_from_others(gemma):
    """A vocabulary of another format isn't known to be all there is."""
    tokenizer = read_tokenizer(str(gemma), local_files_only=True)
    Path(gemma, "tokenizer.json").unlink()
    assert find_tokenizer_files(str(gemma), tokenizer) == []
