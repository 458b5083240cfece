"""The book of schemas: which ones there are, in shared records on the ring, and which of them this node knows.

A schema lives at `schema_key` of its name. Whoever uses it keeps it alive: now and then a node looks it up again, and
writes it once more when its record has grown old or is gone. What was declared on this node is on its disk as well.

Any member can write a shared record, and that is what keeps a schema alive. What the record says is its creator's, and
signed (`SchemaRecord`): who knows a schema believes its creator alone, and of it only a version that extends what is
known; a node that holds the record refuses others (`SchemaBook.may_write`). The creator can end it. Where operators
have denied the creator, nothing of it counts any more, and the name is free. Whoever is the root of the record can
still tell newcomers of another schema, which it has made itself.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from peerd.api import NO_VERSION, Host, Part, RecordAck, RecordOutcome, RecordResult, on_timer
from peerd.errors import ConfigError, Unavailable
from peerd.ids import NodeId, format_id
from peerd.limits import NAME_LENGTH_MAX
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.models import Declared, SchemaEnded, SchemaSummary
from protocols.pubsub.names import schema_key
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.schema.record import SchemaRecord
from protocols.pubsub.service import NotDone

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
    record: SchemaRecord
    used_s: float
    looked_s: float
    is_own: bool = False
    """It was declared on this node, which keeps it for good."""
    failures: int = 0
    """So many renewals in a row were not answered."""

    @property
    def schema(self) -> EventSchema:
        return self.record.schema


@dataclass(slots=True)
class _Declaration:
    schema: EventSchema
    if_version: int | None
    on_done: Callable[[EventSchema | NotDone], None]
    is_end: bool = False
    """The schema, as it is known, is to be over."""
    tries: int = 0


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

    def start(self) -> None:
        """Read what was declared here before, and keep it alive on the ring."""
        kept = self._host.store.keys()
        for key in kept:
            if key.startswith(STORE_PREFIX) and len(self._known) < SCHEMAS_MAX:
                self._read(key.removeprefix(STORE_PREFIX), self._host.store.get(key) or b"")

    def _read(self, name: str, data: bytes) -> None:
        try:
            record = SchemaRecord.read(data, cutoff=self._config.cutoff)
        except ConfigError:
            return
        now, name = self._host.now(), record.schema.name
        self._known[name] = _Known(record, now, now, is_own=True)
        self._host.set_timer(_RENEWAL, self._host.rng.uniform(0.0, ABSENT_S), name)

    def written(self, name: str) -> str:
        """See `protocols.pubsub.ports.Schemas`."""
        known = self._known.get(name)
        return "" if known is None else b64encode(known.record.write()).decode()

    def remember(self, text: str) -> None:
        """See `protocols.pubsub.ports.Schemas`. It is looked up soon: there may be a later version."""
        try:
            record = SchemaRecord.read(b64decode(text, validate=True), cutoff=self._config.cutoff)
        except (ConfigError, ValueError):
            return
        name = record.schema.name
        if name not in self._known and self._counts(record) and not self._adopt(record):
            self._host.cancel_timer(_RENEWAL, name)
            self._host.set_timer(_RENEWAL, self._host.rng.uniform(0.0, ABSENT_S), name)

    # --- asking -------------------------------------------------------------------------------------------------

    def known(self) -> list[SchemaSummary]:
        """The schemas that this node knows now, by name."""
        return [
            SchemaSummary(
                name=name,
                version=known.schema.version,
                attributes=len(known.schema.document.attributes),
                absent=known.schema.document.absent,
                creator=format_id(known.record.creator),
            )
            for name, known in sorted(self._known.items())
        ]

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

    def document(self, name: str, on_done: Callable[[dict[str, Any] | Exception], None]) -> None:
        """A schema as it was declared; it is looked up on the ring."""

        def done(schema: EventSchema | None, why: str) -> None:
            on_done(NotDone("unknown", why) if schema is None else schema.document.model_dump(mode="json"))

        self.refresh(name, done)

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
                return found
            return self._over(found) if found.is_over else self._adopt(found)
        if result.outcome is RecordOutcome.ABSENT:
            if known is None:
                self._note_absent(name)
            return _no_schema(name)
        return f"the schema {name} cannot be looked up now: {result.detail or result.outcome.value}"

    def _parsed(self, name: str, data: bytes) -> SchemaRecord | str:
        try:
            record = SchemaRecord.read(data, cutoff=self._config.cutoff)
        except ConfigError as error:
            return f"what the ring keeps as the schema {name} is not valid: {error}"
        if record.schema.name != name:
            return f"the ring keeps {record.schema.name} in the place of the schema {name}"
        if not self._counts(record):
            return f"what the ring keeps as the schema {name} is not signed by a member: {format_id(record.creator)}"
        return record

    def _counts(self, record: SchemaRecord) -> bool:
        return record.is_proven(self._host.verify)

    def _why_not(self, record: SchemaRecord, known: SchemaRecord) -> str:
        """What forbids to believe a record where another is known; where that one's creator was denied, nothing."""
        if record.creator != known.creator:
            return _belongs(known) if self._counts(known) else ""
        return record.why_not_after(known)

    def _adopt(self, found: SchemaRecord, *, is_own: bool = False) -> str:
        """Believe a schema, unless it contradicts what is known; returns why not."""
        name = found.schema.name
        known = self._known.get(name)
        now = self._host.now()
        if known is not None and found.creator != known.record.creator and not self._counts(known.record):
            self._drop(name)  # the other may be another schema altogether
            known = None
        if known is None:
            if not self._make_room():
                return f"this node has declared {SCHEMAS_MAX} schemas, and knows no more"
            self._known[name] = _Known(found, now, now, is_own)
            self._absent.pop(name, None)
            self._host.set_timer(_RENEWAL, self._renewal_s(), name)
            return ""
        known.is_own = known.is_own or is_own
        if found.creator == known.record.creator and found.schema.version < known.schema.version:
            return ""
        if why := self._why_not(found, known.record):
            return why
        known.record = found
        if known.is_own:
            self._save(found)
        return ""

    def _over(self, found: SchemaRecord) -> str:
        """Forget a schema that its creator has ended."""
        name = found.schema.name
        known = self._known.get(name)
        if known is None:
            self._note_absent(name)
        elif not self._why_not(found, known.record):
            self._drop(name)
        return f"the schema {name} was ended by its creator, {format_id(found.creator)}"

    def _make_room(self) -> bool:
        if len(self._known) < SCHEMAS_MAX:
            return True
        others = [(known.used_s, name) for name, known in self._known.items() if not known.is_own]
        if others:
            self._forget(min(others)[1])
        return bool(others)

    def _forget(self, name: str) -> None:
        del self._known[name]
        self._host.cancel_timer(_RENEWAL, name)

    def _drop(self, name: str) -> None:
        with suppress(Unavailable):  # then it is back after a restart, and this node finds out again
            self._host.store.delete(STORE_PREFIX + name)
        self._forget(name)

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
        if known.record.creator == self._host.id:
            known.record = self._signed(known.schema)  # anew, because the cluster's root may have changed
        self._host.set_timer(_RENEWAL, self._renewal_s(), name)
        self._get(name, partial(self._renew, name))

    def _renew(self, name: str, result: RecordResult) -> None:
        self._learn(name, result)
        known = self._known.get(name)
        if known is None:
            return
        if not self._counts(known.record):  # its creator was denied, and the ring has no schema that counts
            if not known.is_own:
                self._forget(name)
                return
            known.record = self._signed(known.schema)
            self._save(known.record)
        if result.outcome in UNANSWERED or not self._needs_writing(known.record, result):
            self._renewed(name, known, result)
            return
        try:
            self._put(known.record, result, "received", partial(self._renewed, name, known))
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

    def _needs_writing(self, record: SchemaRecord, result: RecordResult) -> bool:
        """Whether the record is gone, will soon lapse, or is older than what is known here."""
        if result.outcome is RecordOutcome.ABSENT:
            return True
        if result.outcome is not RecordOutcome.FOUND or result.value is None:
            return False
        found = self._parsed(record.schema.name, result.value)
        if isinstance(found, str):
            return True
        if self._why_not(record, found):  # two contradict each other: writing again would never end
            return False
        return record.schema.version > found.schema.version or result.remaining_s < self._config.lease / 2

    def _signed(self, schema: EventSchema, *, is_over: bool = False) -> SchemaRecord:
        return SchemaRecord.signed(schema, self._host.id, self._host.sign, is_over=is_over)

    def _put(
        self, record: SchemaRecord, over: RecordResult, ack: RecordAck, on_result: Callable[[RecordResult], None]
    ) -> None:
        self._host.records.put(
            schema_key(record.schema.name),
            record.write(),
            self._config.lease,
            on_result,
            item=SCHEMA_ITEM,
            ack=ack,
            if_version=over.version if over.outcome is RecordOutcome.FOUND else NO_VERSION,
            shared=True,
        )

    # --- declaring ----------------------------------------------------------------------------------------------

    def declare(
        self,
        document: Mapping[str, Any],
        on_done: Callable[[Declared | Exception], None],
        if_version: int | None = None,
    ) -> None:
        """Make a schema known to the whole ring, or a later version of it; this node keeps it from then on.

        ``if_version``: only if this is the version that there is now; 0: only if there is none. ``on_done`` is called
        once it is replicated, or else with why not. Raises `NotDone` for a document that is not valid.
        """
        try:
            schema = EventSchema.read(dict(document), cutoff=self._config.cutoff)
        except ConfigError as error:
            raise NotDone("invalid", str(error)) from error
        before = self._known.get(schema.name)
        old = 0 if before is None else before.schema.version

        def done(made: EventSchema | NotDone) -> None:
            if isinstance(made, NotDone):
                on_done(made)
            else:
                on_done(Declared(name=made.name, version=made.version, is_new=made.version != old))

        self._try(_Declaration(schema, if_version, done))

    def _try(self, job: _Declaration) -> None:
        job.tries += 1
        self._get(job.schema.name, partial(self._compare, job))

    def _compare(self, job: _Declaration, result: RecordResult) -> None:
        """The ring has said what there is now: write, unless it forbids that."""
        name = job.schema.name
        if result.outcome not in (RecordOutcome.FOUND, RecordOutcome.ABSENT):
            job.on_done(NotDone("conflict", f"{name} cannot be declared now: {result.detail or result.outcome.value}"))
            return
        parsed = None if result.value is None else self._parsed(name, result.value)
        current = parsed if isinstance(parsed, SchemaRecord) else None
        known = self._known.get(name)
        newest = current
        if (
            known is not None
            and self._counts(known.record)
            and (current is None or self._why_not(current, known.record))
        ):
            newest = known.record
        why = self._why_not_declared(job, newest)
        if why:
            job.on_done(NotDone("conflict", why))
        elif not job.is_end and current is not None and self._says_the_same(job.schema, current):
            self._declared(job, current)
        else:
            is_known = newest is not None and not job.is_end and self._says_the_same(job.schema, newest)
            record = newest if newest and is_known else self._signed(job.schema, is_over=job.is_end)
            try:
                self._put(record, result, "replicated", partial(self._written, job, record))
            except Unavailable as error:
                job.on_done(NotDone("conflict", f"{name} cannot be declared now: {error}"))

    @staticmethod
    def _says_the_same(schema: EventSchema, current: SchemaRecord) -> bool:
        return not current.is_over and current.schema.document == schema.document

    def _why_not_declared(self, job: _Declaration, newest: SchemaRecord | None) -> str:
        """What forbids to write, where this is the newest record that counts."""
        there = None if newest is None or newest.is_over else newest
        version = 0 if there is None else there.schema.version
        if job.if_version is not None and job.if_version != version:
            return f"the version of {job.schema.name} is {version}, not {job.if_version}"
        if newest is None or (not job.is_end and self._says_the_same(job.schema, newest)):
            return ""
        if newest.creator != self._host.id:
            return _belongs(newest)
        if job.is_end:
            return ""
        if newest.is_over:
            is_later = job.schema.version > newest.schema.version
            return "" if is_later else f"{job.schema.name} has ended with version {newest.schema.version}"
        why = job.schema.why_not_after(newest.schema)
        if not why and job.schema.version > version + 1:
            return f"version {version} of {job.schema.name} is known: the next one is {version + 1}"
        return why

    def _written(self, job: _Declaration, record: SchemaRecord, result: RecordResult) -> None:
        if result.outcome is RecordOutcome.STORED:
            self._declared(job, record)
        elif result.outcome is RecordOutcome.CONFLICT and job.tries < DECLARE_TRIES_MAX:
            self._try(job)  # somebody else has changed it since it was read
        else:
            why = result.detail or result.outcome.value
            what = "has ended" if job.is_end else "is declared"
            job.on_done(NotDone("conflict", f"whether {job.schema.name} {what} is not certain: {why}"))

    def _declared(self, job: _Declaration, record: SchemaRecord) -> None:
        if record.is_over:
            self._over(record)
            job.on_done(record.schema)
        elif why := self._adopt(record, is_own=True):
            job.on_done(NotDone("conflict", why))
        else:
            self._save(record)
            job.on_done(self._known[job.schema.name].schema)

    def _save(self, record: SchemaRecord) -> None:
        """Put it on this node's disk, if that takes it."""
        with suppress(Unavailable):
            self._host.store.put(STORE_PREFIX + record.schema.name, record.write())

    def end(self, name: str, on_done: Callable[[SchemaEnded | Exception], None]) -> None:
        """End a schema of this node's own: everybody forgets it, and its name is free when its record has lapsed.

        ``on_done`` gets the last version once its end is replicated.
        """

        def done(ended: EventSchema | NotDone) -> None:
            on_done(SchemaEnded(name=name, version=ended.version) if isinstance(ended, EventSchema) else ended)

        def found(schema: EventSchema | None, why: str) -> None:
            known = self._known.get(name)
            if known is None:
                on_done(NotDone("conflict", why or _no_schema(name)))
            elif known.record.creator != self._host.id:
                on_done(NotDone("conflict", _belongs(known.record)))
            else:
                self._try(_Declaration(known.schema, None, done, is_end=True))

        self.refresh(name, found)

    # --- other nodes' writes ------------------------------------------------------------------------------------

    def may_write(self, key: NodeId, value: bytes | None) -> bool:
        """Whether another node's write to the item `SCHEMA_ITEM` of this key is taken (`Plugin.record_allowed`).

        It is, if it is a valid schema that belongs there and is signed by its creator, and if that one has made the one
        that this node holds or knows, which it extends or ends.
        """
        if value is None:
            return False
        try:
            name = SchemaRecord.read(value, cutoff=self._config.cutoff).schema.name
        except ConfigError:
            return False
        record = self._parsed(name, value)
        if isinstance(record, str) or schema_key(name) != key:
            return False
        known = self._known.get(name)
        held = self._host.records.local(key, SCHEMA_ITEM)
        before = None if held is None else self._parsed(name, held.value)
        olds = [
            each for each in (before, known.record if known is not None else None) if isinstance(each, SchemaRecord)
        ]
        return not any(self._why_not(record, old) for old in olds)


def _belongs(record: SchemaRecord) -> str:
    whose = f"the schema {record.schema.name} belongs to node {format_id(record.creator)}"
    return f"{whose}: change or end it there; where that node was denied (peerd deny), its name is free"


def _no_schema(name: str) -> str:
    return f"there is no schema {name:.{NAME_LENGTH_MAX}}: declare it first (peerd schema declare FILE)"
