"""A process with subscribers, or the publisher, of one system: ``python -m bench.streams.child SYSTEM WORK``."""

from __future__ import annotations

from bench.rivals.child import run
from bench.streams.clients import CLIENTS
from bench.streams.documents import work_of

if __name__ == "__main__":
    run(CLIENTS, work_of)
