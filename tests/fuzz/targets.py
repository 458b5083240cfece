"""All decoders under test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.aggregation_targets import aggregation_targets
from tests.fuzz.pubsub_targets import pubsub_targets
from tests.fuzz.stream_targets import stream_targets
from tests.fuzz.target import Target
from tests.fuzz.text_targets import text_targets
from tests.fuzz.wire_targets import wire_targets


def all_targets(scratch: Path) -> list[Target]:
    """Every decoder under test, by name once. ``scratch``: a folder for those that read files."""
    return [*wire_targets(), *aggregation_targets(), *pubsub_targets(), *stream_targets(), *text_targets(scratch)]


def shares(targets: Sequence[Target], cases: int) -> dict[Target, int]:
    """How many of ``cases`` each target gets, by weight; at least one."""
    total = sum(target.weight for target in targets)
    return {target: max(1, round(cases * target.weight / total)) for target in targets}
