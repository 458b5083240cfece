"""The sink to which the event records of a simulation go, if they are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO


class NdjsonSink:
    """Writes one JSON object a line, all nodes in one file, which is named as a daemon's.

    ``events-<first node>-1.ndjson`` gets its name when the run is over, so that readers never see half a file.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None
        self._partial: Path | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def write(self, record: dict[str, object]) -> None:
        """Append one line. Raises ``OSError`` when the disk refuses."""
        if self._file is None:
            name = f"events-{str(record['node'])[:8]}-1.ndjson"
            self._partial = self._directory / f"{name}.part"
            self._file = self._partial.open("w", encoding="utf-8")
        self._file.write(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Give the file its name."""
        if self._file is not None and self._partial is not None:
            self._file.close()
            self._file = None
            self._partial.rename(self._partial.with_suffix(""))
