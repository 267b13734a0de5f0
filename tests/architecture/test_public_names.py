"""What a module offers is written in its `__all__`: complete, existing and sorted."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.source_tree import Source, sources

# A package file that holds a docstring at most has nothing to list.
WITH_NAMES = [source for source in sources() if len(source.tree().body) > 1]


def _public_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "__all__" and node.value:
            return list(ast.literal_eval(node.value))
    return None


def _top_level(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names bound at the top level, and those of them that are functions or classes made here."""
    bound: set[str] = set()
    made: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {
                name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
            }
    return bound | made, made


def _order(name: str) -> tuple[int, list[object]]:
    """Constants, then classes, then the rest; numbers by value: the order that ruff's RUF022 writes."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


@pytest.mark.parametrize("source", WITH_NAMES, ids=lambda source: source.name)
def test_public_names_are_listed_and_sorted(source: Source):
    """A reader sees at the top what a file is for, and finds a name in the list where it must be."""
    names = _public_names(source.tree())
    assert names is not None, "no __all__"
    assert names == sorted(names, key=_order)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("source", WITH_NAMES, ids=lambda source: source.name)
def test_public_names_are_complete_and_exist(source: Source):
    """A function or class without an underscore is offered on purpose, and what is offered exists."""
    tree = source.tree()
    names = set(_public_names(tree) or ())
    bound, made = _top_level(tree)
    assert names <= bound
    assert {name for name in made if not name.startswith("_")} <= names
