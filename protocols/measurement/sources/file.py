"""A text file that something else writes, such as a script or a sensor: one number, or a name and a number a line."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from protocols.measurement.sources.source import MeasurementSource

FILE_BYTES_MAX: Final = 64 * 1024
"""Largest file that is read."""


def parse_values(text: str, alone: str) -> dict[str, float]:
    """The values in a text; ``alone``: the name of a number that has none. Raises ``ValueError``.

    Empty lines, and those that begin with #, say nothing. The last line has to have its end: what is written while we
    read would else be taken for a shorter number.
    """
    if not text.endswith("\n"):
        raise ValueError("its last line has no end, so it may be half-written")
    lines = [words for line in text.split("\n") if (words := line.split()) and not words[0].startswith("#")]
    if lines and len(lines[0]) == 1:
        return {alone: float(lines[0][0])}
    values: dict[str, float] = {}
    for words in lines:
        if len(words) != 2 or words[0] in values:
            raise ValueError(f"expected a name and a number, each name once, not {' '.join(words)[:80]!r}")
        values[words[0]] = float(words[1])
    return values


class FileSource(MeasurementSource):
    """The file at ``path``. A number without a name has the source's own."""

    may_block: ClassVar[bool] = True

    def __init__(self, name: str, period_s: float, path: str) -> None:
        super().__init__(name, period_s)
        self._path = Path(path)

    def read(self, now: float) -> dict[str, float]:
        """What is in it now. Raises ``OSError`` and ``ValueError``."""
        if self._path.exists() and not self._path.is_file():  # to open a pipe would wait for a writer
            raise ValueError(f"{self._path} is no ordinary file")
        with self._path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"{self._path} has more than {FILE_BYTES_MAX} bytes")
        return parse_values(content.decode(), self.name)
