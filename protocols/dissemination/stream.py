"""A stream's record: what everybody has to know to take part. It lies at the stream's key, signed by its producer.

It takes the place of the system agent of the CoDD paper (section 2.1), which hands out the seed set. Pure.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id, parse_id
from peerd.invalid import UNKNOWN_KEY, first_reason, told
from peerd.limits import HOST_LENGTH_MAX, KIB
from peerd.messages import BytesMax, PeerRef
from protocols.dissemination.models import StreamName, StreamSpec
from protocols.dissemination.names import TERM_MAX, stream_key

SETTINGS_MAX: Final = 64
SHOWN_MAX: Final = 200
"""Letters of a setting that a person is shown."""
RECORD_BYTES_MAX: Final = 8 * KIB
SEEDS_MAX: Final = 8
STANDBYS_MAX: Final = 4
"""Nodes that may take a stream over when its producer dies."""
FORMER_MAX: Final = 16
"""Producers of earlier terms whose items still count."""
SPEC_BYTES_MAX: Final = RECORD_BYTES_MAX - (1 + SEEDS_MAX + STANDBYS_MAX) * 336 - FORMER_MAX * 64
"""What a new record may take: there is room for all nodes that will ever be in it, with the longest names of hosts."""
TAKE_BACK_TERMS: Final = 16
"""A producer that takes its stream back, because the next one is gone unheard, begins a term that is larger by so much:
the next one may have handed it on several times meanwhile."""
TAKE_OVER_TERMS: Final = 20
"""A standby takes a term that is larger by so much than any that a hand-over in order, or its failure, has reached."""
AFTER_STANDBYS: Final = TAKE_OVER_TERMS + STANDBYS_MAX
"""A producer that comes back, and finds nobody, begins a term later than any of its standbys can have taken."""
PluginName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
NodeText = Annotated[str, Field(min_length=1, max_length=300)]
Setting = bool | int | float | Annotated[str, Field(max_length=256)]


def what_is_wrong(error: ValidationError, settings: type[BaseModel] | None = None) -> str:
    """The first thing that is wrong, in one line for people. ``settings``: what was to be made of a policy's."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"])) or "settings"
    if first["type"] == UNKNOWN_KEY and settings is not None:
        return f"{key}: the policy has no such setting; it has {', '.join(settings.model_fields)}"
    return told(first) if first["loc"] else f"{key}: {told(first)}"


class SeedRef(BaseModel):
    """A node, as a record has it."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    host: Annotated[str, Field(min_length=1), BytesMax(HOST_LENGTH_MAX)]
    port: Annotated[int, Field(ge=1, le=65535)]

    @classmethod
    def of(cls, peer: PeerRef) -> SeedRef:
        """From how messages have it."""
        return cls(id=format_id(peer.id), host=peer.host, port=peer.port)

    @property
    def peer(self) -> PeerRef:
        """As messages have it."""
        return _peer(self.id, self.host, self.port)


@lru_cache(maxsize=1 << 12)  # each member of a stream looks at its producer four times a second
def _peer(id: str, host: str, port: int) -> PeerRef:
    return PeerRef(parse_id(id), host, port)


class FormerProducer(BaseModel):
    """Who has signed the items of an earlier term."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    term: Annotated[int, Field(ge=0, le=TERM_MAX)]


class StreamRecord(BaseModel):
    """What a record says. A later peerd may add members, which are ignored here."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    name: StreamName
    kind: PluginName
    policy: PluginName
    settings: Annotated[dict[Annotated[str, Field(max_length=64)], Setting], Field(max_length=SETTINGS_MAX)] = Field(
        default_factory=dict
    )
    producer: SeedRef
    creator: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    """The node that has created it. Two nodes may create a name in two parts of a divided ring: two streams, whatever
    their terms."""
    producer_gone: Literal["end", "wait", "hand-over"] = "wait"
    durable: bool = False
    """The producer has items on disk before it sends them."""
    is_unkept: bool = False
    """Items of a durable stream have gone out that are not on the producer's disk, because that refused them."""
    term: Annotated[int, Field(ge=0, le=TERM_MAX)] = 0
    """How often the stream was handed over: of two records of one stream the one with the larger term is right."""
    seeds: Annotated[tuple[SeedRef, ...], Field(max_length=SEEDS_MAX)] = ()
    """Members for newcomers to begin at, besides the producer."""
    successors: Annotated[tuple[NodeText, ...], Field(max_length=STANDBYS_MAX)] = ()
    """Who is to be a standby, as the stream's creator has named them; nobody: the producer chooses."""
    standbys: Annotated[tuple[SeedRef, ...], Field(max_length=STANDBYS_MAX)] = ()
    """Who takes the stream over when the producer is gone, in this order. They have all of it."""
    unsigned: bool = False
    """Items are not signed by the producer, but for those to which documents are attached."""
    former: Annotated[tuple[FormerProducer, ...], Field(max_length=FORMER_MAX)] = ()
    """The producers of the last terms, oldest first."""

    @classmethod
    def of(cls, spec: StreamSpec, producer: PeerRef) -> StreamRecord:
        """The record of a new stream. Raises ``ValueError`` for settings of no simple type, or too large."""
        for name, value in spec.settings.items():
            if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not isfinite(value)):
                raise ValueError(f"{name:.64}: a setting is a number, a text, or true or false")
        if spec.successors and spec.producer_gone != "hand-over":
            raise ValueError("successors: they need producer_gone = 'hand-over'")
        try:
            record = cls(**dict(spec), producer=SeedRef.of(producer), creator=format_id(producer.id))
        except ValidationError as error:
            raise ValueError(what_is_wrong(error)) from error
        if (size := len(record.encode())) > SPEC_BYTES_MAX:
            raise ValueError(f"settings and successors make a record of {size} bytes; {SPEC_BYTES_MAX} is the limit")
        return record

    @property
    def key(self) -> NodeId:
        """Where it lies, and how messages name the stream."""
        return stream_key(self.name)

    @property
    def has_standbys(self) -> bool:
        """Whether other nodes take the stream over when its producer is gone."""
        return self.producer_gone == "hand-over"

    @property
    def seed_peers(self) -> tuple[PeerRef, ...]:
        """Where newcomers begin: the producer where it names nobody."""
        return tuple(seed.peer for seed in self.seeds) or (self.producer.peer,)

    def handed_to(self, producer: PeerRef) -> StreamRecord:
        """The record that the next producer writes."""
        return self._of_producer(producer, self.term + 1)

    def taken_over(self, producer: PeerRef, rank: int) -> StreamRecord:
        """The record that a standby writes. Two standbys in two parts of a divided ring have two terms."""
        return self._of_producer(producer, self.term + TAKE_OVER_TERMS + rank)

    def _of_producer(self, producer: PeerRef, term: int) -> StreamRecord:
        now: Any = {"producer": SeedRef.of(producer), "seeds": (), "standbys": (), "is_unkept": False}
        return self.in_term(term).model_copy(update=now)

    def in_term(self, term: int) -> StreamRecord:
        """The record of a later term."""
        former = (*self.former, FormerProducer(id=self.producer.id, term=self.term))[-FORMER_MAX:]
        return self.model_copy(update={"term": term, "former": former})

    def rank_of(self, node: NodeId) -> int | None:
        """The place of a node among the standbys, from 0; ``None``: it is none."""
        ids = [each.id for each in self.standbys]
        return ids.index(format_id(node)) if format_id(node) in ids else None

    def taken_back(self) -> StreamRecord:
        """The record of a producer that goes on after the next one has written its own, and is gone."""
        return self.in_term(self.term + TAKE_BACK_TERMS)

    def succeeds(self, other: StreamRecord) -> bool:
        """Whether it is the same stream, which was handed over since the other record.

        In the same term, too: the producer of the other record may have had the stream for a moment, and have given it
        back before it has published.
        """
        ignored: Any = {"producer": other.producer, "term": other.term, "former": other.former}
        is_later = self.term > other.term or (self.term == other.term and self.producer.id != other.producer.id)
        return is_later and self.model_copy(update=ignored).says_the_same(other)

    def is_earlier_than(self, other: StreamRecord) -> bool:
        """Whether it is of an earlier term of the same stream."""
        return self.creator == other.creator and self.term < other.term

    def says_the_same(self, other: StreamRecord) -> bool:
        """Whether it is the same stream, whoever its seeds and standbys are at the moment."""
        ignored: Any = {"seeds": (), "standbys": (), "is_unkept": False, "former": ()}
        return self.model_copy(update=ignored) == other.model_copy(update=ignored)

    def differences(self, wished: StreamRecord) -> str:
        """In what this stream is not the one that somebody wants to create, in words; empty: in nothing."""
        names = ("kind", "policy", "settings", "producer_gone", "durable", "successors", "unsigned")
        found = [(name, getattr(self, name), getattr(wished, name)) for name in names]
        return ", ".join(f"{name} is {_shown(own)}, not {_shown(other)}" for name, own, other in found if own != other)

    def encode(self) -> bytes:
        """As bytes. Raises ``ValueError`` when it is too large."""
        data = json.dumps(self.model_dump(mode="json"), separators=(",", ":"), sort_keys=True).encode()
        if len(data) > RECORD_BYTES_MAX:
            raise ValueError(f"the stream's record takes {len(data)} bytes, and {RECORD_BYTES_MAX} is the limit")
        return data


def _shown(value: object) -> str:
    return json.dumps(value, separators=(", ", ": "))[:SHOWN_MAX]


def decode_record(data: bytes, key: NodeId, owner: NodeId | None) -> StreamRecord:
    """Read a record that somebody wrote. Raises `ProtocolError` for one that no correct producer writes."""
    if len(data) > RECORD_BYTES_MAX:
        raise ProtocolError("stream_record", f"a stream's record of {len(data)} bytes")
    try:
        record = StreamRecord.model_validate_json(data)
    except ValidationError as error:
        raise ProtocolError("stream_record", first_reason(error, shows_value=False)[:200]) from error
    if record.key != key:
        raise ProtocolError("stream_record", "the record of another stream lies there")
    if owner is None or format_id(owner) != record.producer.id:
        raise ProtocolError("stream_record", "the record names a producer that has not written it")
    return record
