"""The book of schemas: which ones there are, in shared records on the ring, and which of them this node knows.

A schema lives at `schema_key` of its name. Whoever uses it keeps it alive: now and then a node looks it up again, and
writes it once more when its record has grown old or is gone. What was declared on this node is on its disk as well.

Any member can write a shared record. So a node that knows a schema believes only a later version that extends it
(`EventSchema.why_not_after`), and a node that holds the record refuses others (`SchemaBook.may_write`). Whoever is the
root of the record can still tell newcomers what it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from peerd.api import NO_VERSION, Host, Part, RecordAck, RecordOutcome, RecordResult, on_timer
from peerd.errors import ConfigError, Unavailable
from peerd.ids import NodeId
from peerd.limits import NAME_LENGTH_MAX
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.names import schema_key
from protocols.pubsub.schema import EventSchema

SCHEMA_ITEM: Final = b"d"
"""The name of the item that holds a schema's document."""
SCHEMAS_MAX: Final = 256
"""Most schemas that a node knows at a time; of more, the one not used for longest is forgotten."""
LOOKUPS_MAX: Final = 64
"""Most schemas that are being looked up at a time."""
WAITERS_MAX: Final = 1024
"""Most callers that wait for all these lookups."""
ABSENT_MAX: Final = 1024
ABSENT_S: Final = 5.0
"""For so long a name without a schema is not looked up again."""
REFRESH_MIN_S: Final = 1.0
"""A known schema is not looked up again sooner."""
DECLARE_TRIES_MAX: Final = 4
"""How often a declaration is tried, while others change the schema at the same time."""
STORE_PREFIX: Final = "schema."
RENEWALS_PER_LEASE: Final = 3
AGAIN_MIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
"""Pauses before a renewal that the ring could not answer is tried again: the first one; they double up to the other."""
DOUBLINGS_MAX: Final = 16
UNANSWERED: Final = frozenset({RecordOutcome.NOT_ROOT, RecordOutcome.UNKNOWN})
"""Answers to a renewal after which it is tried again soon."""
_RENEWAL: Final = "schema_renewal"

Done: TypeAlias = Callable[[EventSchema | None, str], None]
"""Called once: with the schema, else with ``None`` and why not."""


@dataclass(slots=True)
class _Known:
    schema: EventSchema
    used_s: float
    looked_s: float
    is_own: bool = False
    """It was declared on this node, which keeps it for good."""
    failures: int = 0
    """So many renewals in a row were not answered."""


@dataclass(slots=True)
class _Declaration:
    schema: EventSchema
    if_version: int | None
    on_done: Done
    tries: int = field(default=0)


class SchemaBook(Part):
    """Implements `protocols.pubsub.ports.Schemas`."""

    def __init__(self, host: Host, config: PubSubConfig) -> None:
        self._host = host
        self._config = config
        self._known: dict[str, _Known] = {}
        self._waiting: dict[str, list[Done]] = {}
        self._waiters = 0
        self._absent: dict[str, float] = {}
        """Names that had no schema, with the time when to look again, oldest first."""
        self.refused: dict[str, str] = {}
        """By name, why the last version that was found of a known schema, or on this node's disk, was not believed."""
        self.changed: Callable[[EventSchema], None] = lambda schema: None
        """Told when a later version of a known schema has been found."""
        self.learnt: Callable[[EventSchema], None] = lambda schema: None
        """Told when a schema is known from now on. It may have been known before, in an earlier version."""
        self.forgotten: Callable[[str], None] = lambda name: None

    def start(self) -> None:
        """Read what was declared here before, and keep it alive on the ring."""
        kept = self._host.store.keys()
        for key in kept:
            if key.startswith(STORE_PREFIX) and len(self._known) < SCHEMAS_MAX:
                self._read(key.removeprefix(STORE_PREFIX), self._host.store.get(key) or b"")

    def _read(self, name: str, data: bytes) -> None:
        try:
            schema = EventSchema.from_json(data, cutoff=self._config.cutoff)
        except ConfigError as error:
            self.refused[name] = f"on this node's disk: {error}"
            return
        now = self._host.now()
        self._known[schema.name] = _Known(schema, now, now, is_own=True)
        self._host.set_timer(_RENEWAL, self._host.rng.uniform(0.0, ABSENT_S), schema.name)

    def written(self, name: str) -> str:
        """See `protocols.pubsub.ports.Schemas`."""
        known = self._known.get(name)
        return "" if known is None else known.schema.document.to_json().decode()

    def remember(self, text: str) -> None:
        """See `protocols.pubsub.ports.Schemas`. It is looked up soon: there may be a later version."""
        try:
            schema = EventSchema.from_json(text.encode(), cutoff=self._config.cutoff)
        except ConfigError:
            return
        if schema.name not in self._known and not self._adopt(schema):
            self._host.cancel_timer(_RENEWAL, schema.name)
            self._host.set_timer(_RENEWAL, self._host.rng.uniform(0.0, ABSENT_S), schema.name)

    # --- asking -------------------------------------------------------------------------------------------------

    def known(self) -> list[str]:
        """The names of the schemas that this node knows, sorted."""
        return sorted(self._known)

    def is_declared_here(self, name: str) -> bool:
        """Whether this node keeps the schema on its disk."""
        return name in self._known and self._known[name].is_own

    def get(self, name: str) -> EventSchema | None:
        """The schema, if this node knows it now."""
        known = self._known.get(name)
        if known is None:
            return None
        known.used_s = self._host.now()
        return known.schema

    def fetch(self, name: str, on_done: Done) -> None:
        """Look it up on the ring, if need be; ``on_done(schema, why_not)`` is called once, perhaps at once."""
        schema = self.get(name)
        if schema is not None:
            on_done(schema, "")
        elif not 0 < len(name) <= NAME_LENGTH_MAX or self._absent.get(name, 0.0) > self._host.now():
            on_done(None, _no_schema(name))
        else:
            self._look_up(name, on_done)

    def refresh(self, name: str, on_done: Done) -> None:
        """As `fetch`, but a known schema is looked up, too: there may be a later version, with more attributes."""
        known = self._known.get(name)
        if known is None or self._host.now() - known.looked_s < REFRESH_MIN_S:
            self.fetch(name, on_done)
        else:
            self._look_up(name, on_done)

    def look_again(self, name: str, on_done: Callable[[bool], None]) -> None:
        """See `protocols.pubsub.ports.Schemas`."""
        before = self.get(name)

        def refreshed(schema: EventSchema | None, why: str) -> None:
            on_done(schema is not None and (before is None or schema.version > before.version))

        self.refresh(name, refreshed)

    def _look_up(self, name: str, on_done: Done) -> None:
        waiting = self._waiting.get(name)
        is_full = waiting is None and len(self._waiting) >= LOOKUPS_MAX
        if is_full or self._waiters >= WAITERS_MAX:
            known = self._known.get(name)
            on_done(known.schema if known is not None else None, "too many schemas are being looked up: try again")
            return
        self._waiters += 1
        if waiting is not None:
            waiting.append(on_done)
            return
        self._waiting[name] = [on_done]
        self._get(name, partial(self._looked_up, name))

    def _get(self, name: str, on_result: Callable[[RecordResult], None]) -> None:
        try:
            self._host.records.get(schema_key(name), on_result, item=SCHEMA_ITEM)
        except Unavailable as error:
            on_result(RecordResult(RecordOutcome.UNKNOWN, detail=str(error)))

    def _looked_up(self, name: str, result: RecordResult) -> None:
        waiting = self._waiting.pop(name, [])
        self._waiters -= len(waiting)
        why = self._learn(name, result)
        known = self._known.get(name)
        for on_done in waiting:
            if known is not None:
                on_done(known.schema, "")
            else:
                on_done(None, why)

    def _learn(self, name: str, result: RecordResult) -> str:
        """Take in what the ring says; returns why this gave no schema."""
        known = self._known.get(name)
        if known is not None:
            known.looked_s = self._host.now()
        if result.outcome is RecordOutcome.FOUND and result.value is not None:
            found = self._parsed(name, result.value)
            if isinstance(found, str):
                if known is not None:
                    self.refused[name] = found
                return found
            return self._adopt(found)
        if result.outcome is RecordOutcome.ABSENT:
            if known is None:
                self._note_absent(name)
            return _no_schema(name)
        return f"the schema {name} cannot be looked up now: {result.detail or result.outcome.value}"

    def _parsed(self, name: str, data: bytes) -> EventSchema | str:
        try:
            schema = EventSchema.from_json(data, cutoff=self._config.cutoff)
        except ConfigError as error:
            return f"what the ring keeps as the schema {name} is not valid: {error}"
        return schema if schema.name == name else f"the ring keeps {schema.name} in the place of the schema {name}"

    def _adopt(self, found: EventSchema, *, is_own: bool = False) -> str:
        """Believe a schema, unless it contradicts what is known; returns why not."""
        known = self._known.get(found.name)
        now = self._host.now()
        if known is None:
            if not self._make_room():
                return f"this node has declared {SCHEMAS_MAX} schemas, and knows no more"
            self._known[found.name] = _Known(found, now, now, is_own)
            self._absent.pop(found.name, None)
            self._host.set_timer(_RENEWAL, self._renewal_s(), found.name)
            self.learnt(found)
            return ""
        known.is_own = known.is_own or is_own
        if found.version < known.schema.version:
            return ""
        why = found.why_not_after(known.schema)
        if why:
            self.refused[found.name] = why
            return why
        self.refused.pop(found.name, None)
        is_later = found.version > known.schema.version
        known.schema = found
        if known.is_own:
            self._save(found)
        if is_later:
            self.changed(found)
        return ""

    def _make_room(self) -> bool:
        if len(self._known) < SCHEMAS_MAX:
            return True
        others = [(known.used_s, name) for name, known in self._known.items() if not known.is_own]
        if others:
            self._forget(min(others)[1])
        return bool(others)

    def _forget(self, name: str) -> None:
        del self._known[name]
        self.refused.pop(name, None)
        self._host.cancel_timer(_RENEWAL, name)
        self.forgotten(name)

    def _note_absent(self, name: str) -> None:
        self._absent.pop(name, None)
        self._absent[name] = self._host.now() + ABSENT_S
        if len(self._absent) > ABSENT_MAX:
            del self._absent[next(iter(self._absent))]

    # --- keeping alive ------------------------------------------------------------------------------------------

    def _renewal_s(self) -> float:
        return self._config.lease / RENEWALS_PER_LEASE * self._host.rng.uniform(0.8, 1.2)

    @on_timer(_RENEWAL)
    def renew(self, name: str) -> None:
        """Look at a schema's record again, or forget the schema if nobody here has used it for two leases."""
        known = self._known.get(name)
        if known is None:
            return
        if not known.is_own and self._host.now() - known.used_s > 2 * self._config.lease:
            self._forget(name)
            return
        self._host.set_timer(_RENEWAL, self._renewal_s(), name)
        self._get(name, partial(self._renew, name))

    def _renew(self, name: str, result: RecordResult) -> None:
        self._learn(name, result)
        known = self._known.get(name)
        if known is None:
            return
        if result.outcome in UNANSWERED or not self._needs_writing(known.schema, result):
            self._renewed(name, known, result)
            return
        try:
            self._put(known.schema, result, "received", partial(self._renewed, name, known))
        except Unavailable as error:
            self._renewed(name, known, RecordResult(RecordOutcome.UNKNOWN, detail=str(error)))

    def _renewed(self, name: str, known: _Known, result: RecordResult) -> None:
        """Try again soon where the ring was not able to answer: when all nodes have been restarted at once, nobody has
        the record, and nobody can subscribe or match events before it is back."""
        if result.outcome not in UNANSWERED:
            known.failures = 0
        elif self._known.get(name) is known:
            pause_s = min(AGAIN_MAX_S, AGAIN_MIN_S * 2**known.failures) * self._host.rng.uniform(0.8, 1.2)
            known.failures = min(known.failures + 1, DOUBLINGS_MAX)
            self._host.cancel_timer(_RENEWAL, name)
            self._host.set_timer(_RENEWAL, pause_s, name)

    def _needs_writing(self, schema: EventSchema, result: RecordResult) -> bool:
        """Whether the record is gone, will soon lapse, or is older than what is known here."""
        if result.outcome is RecordOutcome.ABSENT:
            return True
        if result.outcome is not RecordOutcome.FOUND or result.value is None:
            return False
        found = self._parsed(schema.name, result.value)
        if isinstance(found, str):
            return True
        if schema.why_not_after(found):  # two contradict each other: writing again would never end
            return False
        return schema.version > found.version or result.remaining_s < self._config.lease / 2

    def _put(
        self, schema: EventSchema, over: RecordResult, ack: RecordAck, on_result: Callable[[RecordResult], None]
    ) -> None:
        self._host.records.put(
            schema_key(schema.name),
            schema.document.to_json(),
            self._config.lease,
            on_result,
            item=SCHEMA_ITEM,
            ack=ack,
            if_version=over.version if over.outcome is RecordOutcome.FOUND else NO_VERSION,
            shared=True,
        )

    # --- declaring ----------------------------------------------------------------------------------------------

    def declare(self, document: object, if_version: int | None, on_done: Done) -> None:
        """Make a schema known to the whole ring, or a later version of it; this node keeps it from then on.

        ``if_version``: only if this is the version that there is now; 0: only if there is none. ``on_done`` gets the
        schema once it is replicated; text beside it is a warning. Raises `ConfigError` for a document that is not
        valid.
        """
        schema = EventSchema.read(document, cutoff=self._config.cutoff)
        self._try(_Declaration(schema, if_version, on_done))

    def _try(self, job: _Declaration) -> None:
        job.tries += 1
        self._get(job.schema.name, partial(self._compare, job))

    def _compare(self, job: _Declaration, result: RecordResult) -> None:
        """The ring has said what there is now: write, unless it forbids that."""
        name = job.schema.name
        if result.outcome not in (RecordOutcome.FOUND, RecordOutcome.ABSENT):
            job.on_done(None, f"{name} cannot be declared now: {result.detail or result.outcome.value}")
            return
        found = None if result.value is None else self._parsed(name, result.value)
        current = found if isinstance(found, EventSchema) else None
        known = self._known.get(name)
        newest = max((each for each in (current, known.schema if known else None) if each), key=_version, default=None)
        why = "" if newest is None else job.schema.why_not_after(newest)
        version = 0 if newest is None else newest.version
        if job.if_version is not None and job.if_version != version:
            why = f"the version of {name} is {version}, not {job.if_version}"
        if why:
            job.on_done(None, why)
        elif current is not None and current.document == job.schema.document:
            self._declared(job)
        else:
            try:
                self._put(job.schema, result, "replicated", partial(self._written, job))
            except Unavailable as error:
                job.on_done(None, f"{name} cannot be declared now: {error}")

    def _written(self, job: _Declaration, result: RecordResult) -> None:
        if result.outcome is RecordOutcome.STORED:
            self._declared(job)
        elif result.outcome is RecordOutcome.CONFLICT and job.tries < DECLARE_TRIES_MAX:
            self._try(job)  # somebody else has changed it since it was read
        else:
            why = result.detail or result.outcome.value
            job.on_done(None, f"whether {job.schema.name} is declared is not certain: {why}")

    def _declared(self, job: _Declaration) -> None:
        why = self._adopt(job.schema, is_own=True)
        if why:
            job.on_done(None, why)
            return
        job.on_done(self._known[job.schema.name].schema, self._save(job.schema))

    def _save(self, schema: EventSchema) -> str:
        """Put the document on this node's disk; returns what went wrong."""
        try:
            self._host.store.put(STORE_PREFIX + schema.name, schema.document.to_json())
        except Unavailable as error:
            return f"{schema.name} is declared, but this node has no copy on its disk: {error}"
        return ""

    # --- other nodes' writes ------------------------------------------------------------------------------------

    def may_write(self, key: NodeId, value: bytes | None) -> bool:
        """Whether another node's write to the item `SCHEMA_ITEM` of this key is taken (`Plugin.record_allowed`).

        It is, if it is a valid schema that belongs there, and extends the one that this node holds or knows.
        """
        if value is None:
            return False
        try:
            schema = EventSchema.from_json(value, cutoff=self._config.cutoff)
        except ConfigError:
            return False
        if schema_key(schema.name) != key:
            return False
        known = self._known.get(schema.name)
        held = self._host.records.local(key, SCHEMA_ITEM)
        before = None if held is None else self._parsed(schema.name, held.value)
        olds = [each for each in (before, known.schema if known is not None else None) if isinstance(each, EventSchema)]
        return not any(schema.why_not_after(old) for old in olds)


def _version(schema: EventSchema) -> int:
    return schema.version


def _no_schema(name: str) -> str:
    return f"there is no schema {name:.{NAME_LENGTH_MAX}}: declare it first (peerd schema declare FILE)"
