"""A process with subscribers, or the publisher, of one system: ``python -m bench.pubsub.child SYSTEM WORK``."""

from __future__ import annotations

from bench.pubsub.clients import CLIENTS
from bench.pubsub.trades import work_of
from bench.rivals.child import run

if __name__ == "__main__":
    run(CLIENTS, work_of)
