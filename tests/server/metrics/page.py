"""The table of `docs/metrics.md`, made of the catalogue: `python -m tests.server.metrics.page` writes it."""

import re
from pathlib import Path

from seedance_server.metrics.catalogue import CATALOGUE

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
_MARKED = re.compile(r"(<!-- begin metrics[^\n]*-->\n)(.*?)(<!-- end metrics -->)", re.DOTALL)


def rewritten(text: str) -> str:
    """The page with the table as it is to be."""
    lines = ["| metric | kind | labels | |", "|---|---|---|---|"]
    for metric in CATALOGUE.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} |")
    table = "\n".join(lines) + "\n"
    return _MARKED.sub(lambda found: found[1] + table + found[3], text)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
