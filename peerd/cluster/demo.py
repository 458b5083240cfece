"""What a protocol adds to ``peerd demo``: work on a real ring while one of its daemons is killed, each answer compared.

A part does not know the others. All of them run at the same time; when each has said that it is under way, one daemon
gets SIGKILL, and each part goes on until it has seen what comes of that.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from peerd.client import Client
from peerd.cluster.layout import Tables
from peerd.cluster.local import LocalCluster


@dataclass(frozen=True, slots=True)
class DemoComparison:
    """One answer, and what a plain computation over the same data says."""

    what: str
    answer: str
    is_equal: bool


@dataclass(slots=True)
class DemoStage:
    """The ring, and the moment of the kill."""

    cluster: LocalCluster
    clients: list[Client]
    victim: int
    work: Path
    """A folder for the part's files; it is removed at the end."""
    parts: int
    say: Callable[[str], None]
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the victim is dead."""
    all_under_way: asyncio.Event = field(default_factory=asyncio.Event)
    _under_way: int = 0

    @property
    def survivors(self) -> list[int]:
        """The numbers of the daemons that stay."""
        return [index for index in range(len(self.clients)) if index != self.victim]

    def is_under_way(self) -> None:
        """A part says, once, that it is in the middle of its work."""
        self._under_way += 1
        if self._under_way == self.parts:
            self.all_under_way.set()


class DemoPart(ABC):
    """One protocol's part. It is made with the folder of its input, or ``None`` for what comes with peerd."""

    title: ClassVar[str]
    next_steps: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Commands to try afterwards on a local cluster, each with what it does."""

    @abstractmethod
    def settings(self, work: Path, index: int, count: int) -> Tables:
        """Settings of one daemon, before it is started; ``work``: as in `DemoStage`."""

    @abstractmethod
    async def run(self, stage: DemoStage) -> list[DemoComparison]:
        """Work, and compare. Calls `DemoStage.is_under_way` once, and ends only after the kill."""
