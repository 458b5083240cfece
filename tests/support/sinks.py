"""A sink of event records for tests, of daemons and of simulations."""

from __future__ import annotations


class ListSink:
    """Keeps every record."""

    def __init__(self) -> None:
        self.records: list[dict[str, object]] = []

    def write(self, record: dict[str, object]) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass

    def of_kind(self, kind: str) -> list[dict[str, object]]:
        """The records of one kind of event, e.g. ``node.ready``, in order."""
        return [record for record in self.records if record["event"] == kind]
