"""The tables that one plugin makes of the log of events, and the events that it may have.

Spark makes each table anew for each test, whether its events are in the log or not, and has each column go through it,
whether there is anything in it or not. So a test takes those that it looks at; tests/pipeline/test_pipeline_cli.py
makes all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from peerd.front import SparkTable
from peerd.pipeline.ledger import ledger_table
from peerd.plugins import find_events, find_fronts
from peerd.telemetry.schema import Event


def tables_of(plugin: str) -> list[Sequence[SparkTable]]:
    """Return them as `run_job` takes them."""
    front = find_fronts()[plugin]
    lines = front.ledger()
    return [front.tables(), [] if lines is None else [ledger_table({plugin: lines})]]


def events_of(plugin: str) -> dict[str, type[Event]]:
    """Those of the core, and of this plugin."""
    others = find_fronts().keys() - {plugin}
    return {kind: event for kind, event in find_events().items() if kind.partition(".")[0] not in others}
