"""Every event that peerd records, typed and versioned.

One event is one flat JSON object on a line: the common fields of `COMMON_FIELDS`, then the fields of its class. The
core's events are here, in `CORE_EVENTS`; a plugin declares its own (`peerd.api.Plugin.events`). A field name means the
same, with the same type, in every class that has it (`union` refuses anything else), so the union of all classes is one
wide table, from which JSON Schema, the Spark job's ``StructType`` and the page of documentation are generated.
**Only append**: a new field is optional; an incompatible change raises `SCHEMA_VERSION`.

Units are last in the names: ``_s`` seconds, ``_bytes``; ids are 32 hexadecimal digits.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, dataclass_transform

from msgspec import Meta, Struct
from msgspec.structs import asdict, fields

from peerd.errors import Bug, ConfigError
from peerd.limits import EVENT_TEXT_LENGTH_MAX

SCHEMA_VERSION: Final = 1

Text = Annotated[str, Meta(max_length=EVENT_TEXT_LENGTH_MAX)]
"""What somebody else may have chosen. A longer one is cut in its record."""

COMMON_FIELDS: Final[dict[str, tuple[type, str]]] = {
    "schema_version": (int, "version of this schema"),
    "ts": (float, "wall clock, seconds since the Unix epoch (virtual in the simulator)"),
    "mono_s": (float, "monotonic clock of the node, seconds"),
    "node": (str, "id of the node that recorded the event"),
    "boot": (int, "boot epoch of that node"),
    "id": (int, "number of the event, unique within (node, boot); a gap is a lost record"),
    "cause": (int, "id of the event of the same node that led to this one, or null"),
    "event": (str, "kind, dotted and stable"),
}

FLAT_TYPES: Final = (bool, int, float, str)
"""The types that a field may have besides null, so that all events fit into one flat table."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Event(Struct, frozen=True, kw_only=True):
    """Base of all events; a subclass names its ``KIND``: a plugin or a part of the core, a dot, and what happened."""

    KIND: ClassVar[str] = ""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if not cls.KIND:
            raise TypeError(f"{cls.__name__} needs a KIND")

    def columns(self) -> dict[str, Any]:
        """Its fields as they stand in a record, long texts cut."""
        columns = asdict(self)
        for name, value in columns.items():
            if value.__class__ is str and len(value) > EVENT_TEXT_LENGTH_MAX:
                columns[name] = value[:EVENT_TEXT_LENGTH_MAX]
        return columns


def union(declared: Mapping[str, Iterable[type[Event]]]) -> dict[str, type[Event]]:
    """Every event class by kind, sorted: the core's, and what each plugin (by name) declares.

    Raises `ConfigError`, naming both, when two have one kind, or one field has two types.
    """
    kinds: dict[str, type[Event]] = {}
    columns: dict[str, tuple[type, str]] = {name: (kind, "every event") for name, (kind, _) in COMMON_FIELDS.items()}
    for owner, events in {"": CORE_EVENTS, **declared}.items():
        for event in events:
            key = f"protocols.{owner}" if owner else None
            if event.KIND in kinds:
                raise ConfigError(f"the event {event.KIND} is {kinds[event.KIND].__name__} already", key=key)
            kinds[event.KIND] = event
            for name, (python_type, _) in field_types(event).items():
                other_type, other = columns.setdefault(name, (python_type, event.KIND))
                if name in COMMON_FIELDS or other_type is not python_type:
                    raise ConfigError(
                        f"the field {name} is {python_type.__name__} in the event {event.KIND} and "
                        f"{other_type.__name__} in {other}: give one of them another name",
                        key=key,
                    )
    return dict(sorted(kinds.items()))


def columns_of(events: Mapping[str, type[Event]]) -> dict[str, type]:
    """Column to Python type of the wide table: the common fields, then all others in order of first appearance."""
    columns: dict[str, type] = {name: kind for name, (kind, _) in COMMON_FIELDS.items()}
    for event in events.values():
        columns |= {name: kind for name, (kind, _) in field_types(event).items() if name not in columns}
    return columns


def json_schema(events: Mapping[str, type[Event]]) -> dict[str, Any]:
    """JSON Schema of one line of an event log. Kinds that are not among ``events`` need the common fields only."""
    kinds = sorted(events)
    required = list(COMMON_FIELDS)
    optional = {"cause"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "peerd event",
        "type": "object",
        "required": required,
        "properties": {
            name: {"type": [_JSON_TYPES[kind], "null"] if name in optional else _JSON_TYPES[kind], "description": text}
            for name, (kind, text) in COMMON_FIELDS.items()
        },
        "allOf": [
            {
                "if": {"properties": {"event": {"const": kind}}},
                "then": {
                    "description": " ".join((events[kind].__doc__ or "").split()),
                    "required": list(field_types(events[kind])),
                    "properties": {
                        name: {"type": [_JSON_TYPES[python], "null"] if may_be_null else _JSON_TYPES[python]}
                        for name, (python, may_be_null) in field_types(events[kind]).items()
                    },
                },
            }
            for kind in kinds
        ],
    }


_JSON_TYPES: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def field_types(event_type: type[Event]) -> dict[str, tuple[type, bool]]:
    """The fields of an event class in order: Python type and whether null is allowed."""
    return {field.name: _plain(field.type) for field in fields(event_type)}


def _plain(annotation: object) -> tuple[type, bool]:
    """Split a type into its plain type, and whether it may be null; ``str | None`` gives ``(str, True)``."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [_plain(part)[0] for part in typing.get_args(annotation) if part is not types.NoneType]
        if len(inner) != 1:
            raise Bug(f"an event field has one type, or one and null: {annotation}")
        return inner[0], True
    if typing.get_origin(annotation) is typing.Annotated:
        return _plain(typing.get_args(annotation)[0])
    if annotation not in FLAT_TYPES or not isinstance(annotation, type):
        raise Bug(f"an event field has a plain type: {annotation}")
    return annotation, False


# The node


class NodeStarted(Event):
    """The daemon (or simulated node) is up, not yet joined."""

    KIND = "node.started"
    address: Text
    version: Text
    profile: Text


class NodeReady(Event):
    """The leaf set is complete: from here on the node delivers keys."""

    KIND = "node.ready"
    duration_s: float
    ring_size: float


class NodeStopped(Event):
    """The node is going down."""

    KIND = "node.stopped"
    reason: Text
    uptime_s: float


class TrafficSnapshot(Event):
    """Control messages of one type since the node's start (cumulative)."""

    KIND = "traffic.snapshot"
    message: Text
    sent: int
    received: int
    sent_bytes: int
    received_bytes: int


class ResourceSnapshot(Event):
    """What the process uses now; absent in the simulator."""

    KIND = "resource.snapshot"
    rss_bytes: int
    cpu_s: float
    open_files: int
    links: int
    loop_lag_s: float


class MetricSnapshot(Event):
    """A minute: a counter (since the node's start) or gauge that is not what it was at the last one; absent in the
    simulator. `labels`: such as reason=busy,way=in. Of histograms there are the sum and the count."""

    KIND = "metric.snapshot"
    metric: Text
    labels: Text
    value: float


class RecordsDropped(Event):
    """The sink could not keep up since the last line."""

    KIND = "sink.dropped"
    records: int


class PluginRestarted(Event):
    """A handler raised; the plugin was started anew (or disabled after too many times)."""

    KIND = "plugin.restarted"
    plugin: Text
    error: Text
    disabled: bool


class ConfigReloaded(Event):
    """The configuration was read again (not in the simulator). ``applied``, ``needs_restart``: the keys that changed.
    ``error``: why nothing was applied, or empty."""

    KIND = "config.reloaded"
    applied: Text
    needs_restart: Text
    error: Text


# Links and overlay


class LinkUp(Event):
    """A control link passed its handshake."""

    KIND = "link.up"
    peer: str
    address: Text
    dialled: bool
    protocol: int


class LinkDown(Event):
    """A control link ended."""

    KIND = "link.down"
    peer: str
    reason: Text
    duration_s: float


class LinkRefused(Event):
    """A connection that never became a link."""

    KIND = "link.refused"
    peer: str | None
    address: Text
    reason: Text
    detail: Text


class PeerMisbehaviour(Event):
    """A peer broke the protocol and lost its connection."""

    KIND = "peer.misbehaved"
    peer: str | None
    address: Text
    reason: Text
    detail: Text


class PeerSuspected(Event):
    """A neighbour was silent past its time-out."""

    KIND = "overlay.peer_suspected"
    peer: str
    silence_s: float
    evidence: Text


class PeerFailed(Event):
    """A neighbour was removed from the overlay's tables."""

    KIND = "overlay.peer_failed"
    peer: str
    evidence: Text


class LeafSetChanged(Event):
    """Members entered or left the leaf set."""

    KIND = "overlay.leaf_set_changed"
    added: int
    removed: int
    members: int
    complete: bool


class LeaseChanged(Event):
    """The node may answer as root from now on, or not any more; the silences are of its ring neighbours."""

    KIND = "overlay.lease_changed"
    held: bool
    left_silence_s: float | None
    right_silence_s: float | None


class PartitionSuspected(Event):
    """Many peers were lost at once, or enough of them are back. ``known``: still in the tables."""

    KIND = "overlay.partition_suspected"
    suspected: bool
    missing: int
    known: int


class MemberMissing(Event):
    """A member went without goodbye, and is expected from now on. ``evidence``: silent, told (by other members), or
    remembered (from before a restart)."""

    KIND = "overlay.member_missing"
    peer: str
    address: Text
    silence_s: float
    evidence: Text


class MemberReturned(Event):
    """A missing member is back."""

    KIND = "overlay.member_returned"
    peer: str
    address: Text
    silence_s: float


class MemberForgotten(Event):
    """A missing member is not expected any more: forgotten, left, denied or expired. ``told_by``: who said so; null:
    this node."""

    KIND = "overlay.member_forgotten"
    peer: str
    address: Text
    silence_s: float
    reason: Text
    told_by: str | None


class LookupFinished(Event):
    """A lookup started here ended."""

    KIND = "overlay.lookup_finished"
    key: str
    root: str | None
    hops: int
    duration_s: float


# Records


class RecordsRepaired(Event):
    """A comparison of replicas with a peer found differences; the numbers are of records."""

    KIND = "records.repaired"
    peer: str
    sent: int
    received: int
    duration_s: float


class RecordsHandedOver(Event):
    """The new replica set has these records; this node leaves that set or the ring."""

    KIND = "records.handed_over"
    records: int
    value_bytes: int
    duration_s: float


# Swaps


class SwapFinished(Event):
    """A swap ended here; ``tag`` is the plugin's name for it, in hexadecimal; ``outcome`` is done or a reason;
    ``opened_s`` of ``duration_s`` had passed when it could be written to its connection."""

    KIND = "swap.finished"
    peer: str
    plugin: Text
    tag: Text
    outcome: Text
    initiated: bool
    sent_bytes: int
    received_bytes: int
    duration_s: float
    opened_s: float


# Identity


class CertificateIssued(Event):
    """This issuer made a certificate: for a new node (``token``: the id of its token) or to renew one."""

    KIND = "identity.issued"
    peer: str
    address: Text
    serial: Text
    expires_at: float
    token: Text | None


class JoinRefused(Event):
    """This issuer sent a machine away that wanted to join."""

    KIND = "identity.join_refused"
    address: Text
    reason: Text
    detail: Text


class CertificateInstalled(Event):
    """This node uses a new certificate from now on."""

    KIND = "identity.installed"
    serial: Text
    expires_at: float


class NoticeLearned(Event):
    """A notice of the cluster's CA is new here: a denial, an issuer, another root."""

    KIND = "identity.notice_learned"
    subject: Text
    detail: Text
    peer: str | None


CORE_EVENTS: Final[tuple[type[Event], ...]] = (
    NodeStarted,
    NodeReady,
    NodeStopped,
    TrafficSnapshot,
    ResourceSnapshot,
    MetricSnapshot,
    RecordsDropped,
    PluginRestarted,
    ConfigReloaded,
    LinkUp,
    LinkDown,
    LinkRefused,
    PeerMisbehaviour,
    PeerSuspected,
    PeerFailed,
    LeafSetChanged,
    LeaseChanged,
    PartitionSuspected,
    MemberMissing,
    MemberReturned,
    MemberForgotten,
    LookupFinished,
    RecordsRepaired,
    RecordsHandedOver,
    SwapFinished,
    CertificateIssued,
    JoinRefused,
    CertificateInstalled,
    NoticeLearned,
)
"""Every class of event that the core records."""
