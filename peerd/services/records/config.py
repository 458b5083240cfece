"""Parameters of the replicated key-value store: the table ``[records]``; docs/records.md says what they bound."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from peerd import limits
from peerd.api import PluginConfig
from peerd.quantities import Count, Duration, Interval, Size, between_durations, between_sizes, misfit, setting

TOMBSTONE_MARGIN_S: Final = 600.0
"""A tombstone lives this much longer than every older copy can: a reserve for pauses, queues and drifting clocks."""
RECORD_OVERHEAD_BYTES: Final = 256
"""Charged to a quota for each record on top of its value, the name of its item and its proof, tombstones included."""

Copies = Annotated[int, Field(ge=1, le=limits.LEAF_SET_SIZE // 2)]
Lifetime = Annotated[Duration, between_durations("1s", "7d")]
Quota = Annotated[Size, between_sizes("1KiB", "1TiB")]


class RecordsConfig(PluginConfig):
    """How many copies of a record there are, how long they live, and how much a node holds."""

    replicas: Copies = setting(
        3,
        "r: nodes that hold a record, the root among them. replicas - 1 of them may die at once without losing what "
        "was acknowledged as replicated. The same on all nodes. Raise it for wilder churn, at replicas - 1 messages a "
        "write.",
    )
    ttl_max: Lifetime = setting(
        "1h",
        "Longest life of a record that is not put again. A tombstone is kept for ttl_max + 10 minutes, so that it "
        "outlives every copy of what it deleted. The same on all nodes.",
    )
    value_bytes_max: Annotated[Size, between_sizes("1B", "40KiB")] = setting(
        "32KiB", "Largest value; it travels in a routed message, which holds 48 KiB in all."
    )
    origin_records_max: Count = setting(
        10_000,
        "Records (tombstones included) held here for one writing node; above it, its new ones are refused: QUOTA.",
    )
    origin_bytes_max: Quota = setting(
        "64MiB", "Bytes held here for one writing node: values, names of items, proofs, and 256 bytes a record on top."
    )
    key_items_max: Count = setting(
        4096,
        "Items held here under one key of one plugin (tombstones included); above it, new ones are refused: QUOTA.",
    )
    key_bytes_max: Quota = setting(
        "8MiB",
        "Bytes held here under one key of one plugin: values, names of items, proofs, and 256 bytes a record on top.",
    )
    records_max: Count = setting(100_000, "Records held here in all. About 2 KiB of memory each, without its value.")
    bytes_max: Quota = setting("192MiB", "Bytes held here in all, counted as for origin_bytes_max.")
    operation_timeout: Interval = setting(
        "20s",
        "How long a put, get or delete is tried before its outcome is UNKNOWN or NOT_ROOT, unless its caller says "
        "otherwise; above overlay.failure_timeout, so that a silent root or replica is replaced meanwhile.",
    )
    retry_min: Interval = setting(
        "500ms", "First pause before an operation without an answer is sent again, under the same id; it doubles."
    )
    retry_max: Interval = setting("4s", "Longest such pause.")
    peer_timeout: Interval = setting(
        "2s", "How long one replica may take to answer. Raise it on slow networks; it delays only what is wrong anyway."
    )
    push_retry: Interval = setting("500ms", "Pause before a write is offered again to a replica that did not take it.")
    settle: Interval = setting(
        "300ms", "After a change of neighbours, the time to comparing records with them; changes come in bursts."
    )
    sync_interval: Interval = setting(
        "60s",
        "Between two comparisons with one neighbour (+-20 %), of two messages when nothing differs. It doubles while "
        "the two agree and nothing is written, up to 16 times this; with nothing to compare there is none. Lower "
        "finds what a write has not reached sooner.",
    )
    sync_pause: Interval = setting(
        "10ms",
        "Between two messages of one comparison or hand-over, each of at most 48 KiB: bounds its rate to "
        "48 KiB / sync_pause. Raise it where links are narrow.",
    )

    @property
    def tombstone_ttl_s(self) -> float:
        """How long a deletion is remembered, seconds."""
        return self.ttl_max + TOMBSTONE_MARGIN_S

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.retry_min > self.retry_max:
            raise misfit("records.retry_max", "expected at least records.retry_min")
        least_bytes = min(self.key_bytes_max, self.origin_bytes_max, self.bytes_max)
        if self.value_bytes_max + RECORD_OVERHEAD_BYTES > least_bytes:
            raise misfit("records.value_bytes_max", "expected less than key_bytes_max, origin_bytes_max and bytes_max")
        return self
