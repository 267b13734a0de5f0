"""Files and classes are named after nouns of the field, never after the lack of one."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.source_tree import Source, sources

# Each of these says where something was put, not what it is.
EMPTY_WORDS = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}


def _words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)
def test_names_say_what_a_thing_is(source: Source):
    """A drawer for anything collects everything."""
    classes = [node.name for node in ast.walk(source.tree()) if isinstance(node, ast.ClassDef)]
    empty = {name: _words(name) & EMPTY_WORDS for name in [source.path.stem, *classes]}
    assert {name: words for name, words in empty.items() if words} == {}


def test_words_are_split_as_people_read_them():
    """The rule sees through both ways of writing a name."""
    assert _words("KvCacheManager") == {"kv", "cache", "manager"}
    assert _words("string_utils") == {"string", "utils"}
    assert _words("HTTPBase2") == {"http", "base", "2"}
    assert _words("database") == {"database"}
