"""What a campaign of faults did and what came of it: one line of a table that says 0 where 0 was promised."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from tests.faults.history import Fault, Verdict

__all__ = ["Tally", "percentile", "table"]


@frozen(kw_only=True)
class Tally:
    """One campaign.

    Attributes:
        name: What it was.
        faults: Connections harmed.
        kills: Servers killed.
        streams: Streams read.
        verdict: Of the history checker.
        wrong: Streams whose text is not that of an undisturbed run.
        waits_s: From each fault to the first connection after it.
        resumes_s: From there to the first new piece, stream by stream.
    """

    name: str
    faults: int
    kills: int
    streams: int
    verdict: Verdict
    wrong: Sequence[str] = ()
    waits_s: Sequence[float] = ()
    resumes_s: Sequence[float] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, repeated or changed."""
        return not self.verdict.findings and not self.wrong

    def row(self) -> tuple[str, ...]:
        """Its cells, as in `table`."""
        lost = self.verdict.bytes_of(Fault.LOST)
        duplicated = self.verdict.bytes_of(Fault.DUPLICATED)
        other = len(self.wrong) + sum(
            finding.fault not in (Fault.LOST, Fault.DUPLICATED) for finding in self.verdict.findings
        )
        return (
            self.name,
            f"{self.faults:,}",
            f"{self.kills:,}",
            f"{self.streams:,}",
            f"{self.verdict.text_bytes:,}",
            f"{lost:,}",
            f"{duplicated:,}",
            f"{other:,}",
            _seconds(percentile(self.waits_s, 0.5)),
            _seconds(percentile(self.waits_s, 0.99)),
            _seconds(percentile(self.resumes_s, 0.5)),
            _seconds(percentile(self.resumes_s, 0.99)),
        )


HEADINGS = (
    *("campaign", "faults", "kills", "streams", "bytes", "lost", "duplicated", "other"),
    *("wait P50", "wait P99", "resume P50", "resume P99"),
)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; NaN for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f} s"


def table(tallies: Sequence[Tally]) -> str:
    """All campaigns, one a line."""
    rows = [HEADINGS, *(tally.row() for tally in tallies)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"
