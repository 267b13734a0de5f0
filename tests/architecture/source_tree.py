"""The files that the rules of the house are about: where they lie and which test belongs to each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attrs import frozen

__all__ = ["PACKAGES", "ROOT", "Source", "sources"]

ROOT = Path(__file__).parents[2]
# Package directory -> folder of its tests. A nested package is listed by itself.
PACKAGES = {
    "wire/seedance_wire": "tests/wire",
    "seedance_sdk": "tests/sdk",
    "seedance_sdk/cli": "tests/sdk/cli",
    "seedance_server": "tests/server",
    "seedance_server/engine": "tests/engine",
    "seedance_server/engine/kernels": "tests/engine/kernels",
    "seedance_server/http": "tests/server/http",
    "seedance_server/journal": "tests/server/journal",
    "seedance_server/metrics": "tests/server/metrics",
    "seedance_server/playground": "tests/server/playground",
}


@frozen
class Source:
    """One hand-written source file.

    Attributes:
        path: Where it lies.
        name: The same from the repository's root, for messages.
        test: Where its test belongs, from the repository's root.
    """

    path: Path
    name: str
    test: str

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(), self.name)


@cache
def sources() -> tuple[Source, ...]:
    """Every source file that is written by hand, generated code apart."""
    return tuple(_find())


def _find() -> Iterator[Source]:
    for package, tests in PACKAGES.items():
        for path in sorted((ROOT / package).glob("*.py")):
            if not path.name.endswith("_pb2.py"):
                test = f"{tests}/test_{path.stem.strip('_')}.py"
                yield Source(path, path.relative_to(ROOT).as_posix(), test)
