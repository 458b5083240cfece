"""What a schema means: domains and coordinates of its attributes, events by its types, filters by its names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import msgpack

from peerd.errors import ConfigError, ProtocolError, closest
from peerd.frozen import Frozen
from peerd.lib.filter import FilterTooLarge, Node, covers_form, from_json, normal_form, parse, write
from peerd.lib.filter.evaluate import Matcher, matcher
from peerd.lib.filter.meaning import Presence
from peerd.lib.filter.normal import NormalForm
from peerd.lib.filter.schema import Schema as FilterSchema, Type
from peerd.lib.filter.values import Key, parse_network
from protocols.pubsub.messages import FILTER_BYTES_MAX, VALUES_BYTES_MAX
from protocols.pubsub.models import RESERVED
from protocols.pubsub.names import EVERY
from protocols.pubsub.ports import Values
from protocols.pubsub.schema.axes import Axis, RealAxis, TextAxis, WholeAxis
from protocols.pubsub.schema.document import AttributeDocument, SchemaDocument, document_from_json, read_document
from protocols.pubsub.schema.values import (
    CANONICAL,
    VIEWS,
    EventError,
    canonical,
    from_wire,
    key_of,
    said,
    shown,
    to_wire,
)
from protocols.pubsub.tree.cells import SIDE, Target

CUTOFF_MIN: Final = 1 / 32
"""The cut-off is never nearer to the diagonal: a range of the whole domain becomes at most 64 pieces."""
NESTED_MAX: Final = 8
"""How deep an event's objects may be nested."""
SCHEMAS_KEPT: Final = 16
"""Documents whose schemas are kept, for who reads the same again: all nodes of a simulation do."""
FORMS_KEPT: Final = 320
"""Normal forms of filters that a schema remembers, of 1.5 KB each: the newest ones, some more than a new filter is
compared with."""
DECODED_KEPT: Final = 1024
DECODED_BYTES_MAX: Final = 512
"""The values of so many events are kept decoded, where they are as small as those of most."""
_PLAIN: Final = frozenset((str, int, float, bool))
_ALL_ADDRESSES: Final = "0.0.0.0/0"


class Attribute(Frozen):
    """An attribute: its number (from 1 on, in the order of the document), type and domain.

    ``reversed_of``: it holds that other attribute's text, reversed. ``length_max``: no longer range is one point.
    """

    number: int
    name: str
    type: Type
    axis: Axis
    default: Any
    reversed_of: str | None
    is_routed: bool
    length_max: int

    def place(self, value: Any) -> int:
        """The coordinate of a value as filters read it."""
        return self.axis.coordinate(key_of(self.type, value))

    def shown_at(self, coordinate: int) -> str:
        """About which value has a coordinate, for people."""
        value = self.axis.value(coordinate)
        if isinstance(self.axis, RealAxis):
            return f"{float(value):.6g}"
        if isinstance(self.axis, TextAxis):
            return f"'{value}'" if value or coordinate < SIDE else "the last"
        return said(self.type, value)


class EventTargets(Mapping[int, Target]):
    """By tree, the target of an event, worked out when somebody asks: where a tree is one leaf nobody does."""

    __slots__ = ("_found", "_trees", "_values")

    def __init__(self, trees: Mapping[int, Attribute | None], values: Values) -> None:
        self._trees, self._values = trees, values
        self._found: dict[int, Target] = {}

    def __getitem__(self, number: int) -> Target:
        found = self._found.get(number)
        if found is None:
            attribute = self._trees[number]
            if attribute is None:
                found = Target(None)
            elif attribute.name in self._values:
                found = Target(attribute.place(self._values[attribute.name]), attribute.length_max)
            else:
                found = Target(None, attribute.length_max)
            self._found[number] = found
        return found

    def __contains__(self, number: object) -> bool:
        return number in self._trees

    def __iter__(self) -> Iterator[int]:
        return iter(self._trees)

    def __len__(self) -> int:
        return len(self._trees)


class EventSchema:
    """A schema in use; implements `protocols.pubsub.ports.SchemaView`."""

    def __init__(self, document: SchemaDocument, *, cutoff: float = 1.0, file: str | None = None) -> None:
        """Raises `ConfigError`. ``cutoff``: of attributes that have none of their own; the same on all nodes."""
        self.document = document
        made = [
            _attribute(number, each, document, each.cutoff or cutoff, file)
            for number, each in enumerate(document.attributes, 1)
        ]
        self.attributes: Mapping[str, Attribute] = {each.name: each for each in made}
        self.by_number: Mapping[int, Attribute] = {each.number: each for each in made}
        self._travelling = {str(each.number): each for each in made if each.reversed_of is None}
        if len(self.attributes) < len(made):
            twice = next(each.name for each in made if made[each.number - 1] is not self.attributes[each.name])
            raise ConfigError("two attributes have this name", file=file, key=f"attributes.{twice}")
        self.absent_matches = document.absent == "matches"
        self._is_bounded = document.outside == "refuse"
        self._types = FilterSchema({each.name: each.type for each in made})
        self._shadows = [each for each in made if each.reversed_of is not None]
        self._routed = [each for each in made if each.is_routed]
        self._trees: dict[int, Attribute | None] = {EVERY: None} | {each.number: each for each in self._routed}
        """What an event visits that has all attributes with trees."""
        self._kinds = {each.name: (each, CANONICAL[each.type]) for each in made if each.reversed_of is None}
        self._defaults = [each for each in made if each.default is not None]
        self._decoded: dict[bytes, Values] = {}
        """What was decoded lately: an event's values are asked for where it is published, passed on, matched and given
        to clients."""
        self.name = document.name
        """Its name, which is all that the ring knows it by."""
        self.is_signed = document.signed
        """Whether events carry a proof of their publisher."""
        self._forms: dict[Node, NormalForm] = {}
        """Of the filters that were asked about last: a new subscription is compared with hundreds of old ones."""

    @staticmethod
    def read(document: object, *, cutoff: float = 1.0, file: str | None = None) -> EventSchema:
        """Make a schema of a parsed TOML or JSON document. Raises `ConfigError` naming file and key."""
        return EventSchema(read_document(document, file=file), cutoff=cutoff, file=file)

    @staticmethod
    @lru_cache(maxsize=SCHEMAS_KEPT)
    def from_json(data: bytes, *, cutoff: float = 1.0) -> EventSchema:
        """Read what is kept in a record. Raises `ConfigError`."""
        return EventSchema(document_from_json(data), cutoff=cutoff)

    @property
    def version(self) -> int:
        """Its version, from 1 on."""
        return self.document.version

    def shadow_of(self, name: str) -> Attribute | None:
        """The routed attribute that holds this one's text reversed, if there is one."""
        return next((each for each in self._shadows if each.reversed_of == name and each.is_routed), None)

    def why_not_after(self, old: EventSchema) -> str:
        """Empty if this is the same schema or a later version of it, else what forbids that it follows ``old``.

        A later version may only append attributes, so that stored subscriptions and numbers stay what they are.
        """
        if self.name != old.name:
            return f"{self.name} is not {old.name}"
        if self.version < old.version:
            return f"version {old.version} of {old.name} is known already"
        if self._meaning == old._meaning:
            return ""
        if self.version == old.version:
            return f"another version {old.version} of {old.name} is known: give the changed one a higher version"
        for key, mine, its in zip(("absent", "outside", "signed"), self._rules, old._rules, strict=True):
            if mine != its:
                return f"{key} was {its!r} in version {old.version}, and stays"
        for number, attribute in old.by_number.items():
            if self.by_number.get(number) != attribute:
                return (
                    f"attribute {number} was {attribute.name} in version {old.version}, and stays as it was declared: "
                    "attributes can only be appended"
                )
        return ""

    @property
    def _rules(self) -> tuple[Any, ...]:
        return self.document.absent, self.document.outside, self.document.signed

    @property
    def _meaning(self) -> tuple[Any, ...]:
        return self._rules, self.by_number

    # --- events -------------------------------------------------------------------------------------------------

    def targets(self, values: Values) -> Mapping[int, Target]:
        """For each tree that an event visits, its target (section 3.2): the tree `EVERY`, and those of attributes.

        Where conditions on absent attributes hold, subscriptions anywhere in the trees of those may match.
        """
        if self.absent_matches or all(each.name in values for each in self._routed):
            return EventTargets(self._trees, values)
        return EventTargets({EVERY: None} | {each.number: each for each in self._routed if each.name in values}, values)

    def has_all(self, event: Mapping[str, Any]) -> bool:
        """Whether there is an attribute for every member of a client's event that has to be one."""
        members = {name: value for name, value in event.items() if not name.startswith(RESERVED)}
        try:
            return all(name in self.attributes for name, _ in _flat(members, self.attributes, "", 0))
        except EventError:  # no later version makes it good
            return True

    def read_values(self, values: Mapping[str, Any]) -> Values:
        """Return a client's values as filters read them, with defaults. Raises `EventError`.

        Objects within the event are read as names with dots. ``null`` is the same as no value.
        """
        found: Values = {}
        for name, value in _flat(values, self.attributes, "", 0):
            known = self._kinds.get(name) if value.__class__ in _PLAIN else None
            if known is not None and (plain := known[1](value)) is not None and self._is_inside(known[0], plain):
                found[name] = plain
                continue
            attribute = self.attributes.get(name)  # what is wrong with it, or another type, is found out at leisure
            if attribute is None:
                raise EventError(f"{self.name} has no attribute of this name{_hint(name, self.attributes)}", name)
            if attribute.reversed_of is not None:
                raise EventError(f"it is filled in by the node, from {attribute.reversed_of}", name)
            if value is None:
                continue
            try:
                found[name] = self._checked(attribute, canonical(attribute.type, value))
            except ValueError as error:
                raise EventError(str(error), name) from None
        return self._completed(found)

    def pack(self, values: Values) -> bytes:
        """Encode what `read_values` has returned, for the wire. Raises `EventError` when it is too large."""
        numbered = {
            word: to_wire(attribute.type, values[attribute.name])
            for word, attribute in self._travelling.items()
            if attribute.name in values
        }
        data: bytes = msgpack.packb(numbered)
        if len(data) > VALUES_BYTES_MAX:
            raise EventError(f"the values of an event take at most {VALUES_BYTES_MAX} bytes, not {len(data)}")
        return data

    def decode_values(self, data: bytes) -> Values:
        """Read what came from the network; others may have the same values, so nobody changes them. Raises
        `ProtocolError`.

        Attributes that only a later version of the schema has are left out: no filter that this one reads names them.
        """
        if (known := self._decoded.get(data)) is not None:
            return known
        if len(data) > VALUES_BYTES_MAX:
            raise ProtocolError("event_values", "too large")
        try:
            numbered = msgpack.unpackb(data, strict_map_key=True, max_map_len=255, max_array_len=0)
        except (ValueError, msgpack.UnpackException) as error:
            raise ProtocolError("event_values", str(error)[:100]) from None
        if not isinstance(numbered, dict):
            raise ProtocolError("event_values", "not a map")
        found: Values = {}
        for word, value in numbered.items():
            attribute = self._travelling.get(word) or self._numbered(word)
            if attribute is None:
                continue
            try:
                found[attribute.name] = self._checked(attribute, from_wire(attribute.type, value))
            except ValueError as error:
                raise ProtocolError("event_values", f"{attribute.name}: {error}") from None
        if len(data) <= DECODED_BYTES_MAX:
            if len(self._decoded) >= DECODED_KEPT:
                self._decoded.clear()
            self._decoded[data] = found
        return self._completed(found)

    def _numbered(self, word: object) -> Attribute | None:
        if not isinstance(word, str) or not (word.isascii() and word.isdigit()) or len(word) > 3 or word[0] == "0":
            raise ProtocolError("event_values", "a name that is no number")
        attribute = self.by_number.get(int(word))
        if attribute is not None and attribute.reversed_of is not None:
            raise ProtocolError("event_values", f"{attribute.name} does not travel")
        return attribute

    def _is_shadow(self, name: str) -> bool:
        return name in self.attributes and self.attributes[name].reversed_of is not None

    def visible(self, values: Values) -> Values:
        """Return the values without those that the node has filled in for its own use."""
        return {name: value for name, value in values.items() if not self._is_shadow(name)} if self._shadows else values

    def _checked(self, attribute: Attribute, value: Any) -> Any:
        if not self._is_inside(attribute, value):
            raise ValueError(f"{shown(value)} lies outside the domain, {_domain(attribute)}")
        return value

    def _is_inside(self, attribute: Attribute, value: Any) -> bool:
        return not self._is_bounded or attribute.axis.holds(key_of(attribute.type, value))

    def _completed(self, found: Values) -> Values:
        for attribute in self._defaults:
            found.setdefault(attribute.name, attribute.default)
        for shadow in self._shadows:
            if shadow.reversed_of in found:
                found[shadow.name] = found[shadow.reversed_of][::-1]
        return found

    # --- filters ------------------------------------------------------------------------------------------------

    def parse_filter(self, document: object) -> Node:
        """Read a filter, as text or in one of its JSON forms, with this schema's names and types.

        Raises `FilterError`, and `FilterTooLarge` with the limit's name, also for what could not be matched quickly.
        """
        if isinstance(document, str):
            node = parse(document, schema=self._types)
        else:
            node = self._types.apply(from_json(document))
        self.form(node)
        if len(write(node).encode()) > FILTER_BYTES_MAX:
            raise FilterTooLarge("FILTER_BYTES_MAX", f"a filter has at most {FILTER_BYTES_MAX} bytes when written out")
        return node

    def form(self, node: Node) -> NormalForm:
        """The normal form of a filter, under this schema's meaning of absent attributes."""
        known = self._forms.get(node)
        if known is None:
            known = self._forms[node] = normal_form(node, absent_matches=self.absent_matches)
            if len(self._forms) > FORMS_KEPT:
                del self._forms[next(iter(self._forms))]
        return known

    def matcher(self, node: Node) -> Matcher:
        """A function that says exactly whether an event's values match a filter."""
        return matcher(node, absent_matches=self.absent_matches)

    def covers(self, wide: Node, narrow: Node) -> bool:
        """Whether all events that match ``narrow`` match ``wide``; "no" is not certain."""
        wide_form = self.form(wide)
        # Where absent attributes match, a range does not say that its attribute is there.
        if self.absent_matches and any(
            isinstance(test, Presence) for each in wide_form.conjuncts for test in each.tests
        ):
            return False
        return covers_form(wide_form, self.form(narrow))


def _flat(values: Mapping[str, Any], known: Mapping[str, Attribute], above: str, depth: int) -> list[tuple[str, Any]]:
    """List the members of an event; those of objects in it by names with dots."""
    if depth > NESTED_MAX:
        raise EventError(f"objects are nested at most {NESTED_MAX} deep", above.rstrip("."))
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if not isinstance(name, str):
            raise EventError(f"the name of an attribute is a string, not {shown(name)}")
        if value.__class__ not in _PLAIN and isinstance(value, Mapping) and above + name not in known:
            found += _flat(value, known, f"{above}{name}.", depth + 1)
        else:
            found.append((above + name, value))
    return found


def _hint(name: str, known: Mapping[str, Attribute]) -> str:
    near = closest(name[:64], known)
    return f"; it has {', '.join(list(known)[:8])}" if near is None else f"; did you mean {near}?"


def _domain(attribute: Attribute) -> str:
    axis = attribute.axis
    if isinstance(axis, TextAxis):
        return f"{shown(axis.low)} to {shown(axis.high)}"
    assert isinstance(axis, WholeAxis | RealAxis)
    return f"{said(attribute.type, axis.low)} to {said(attribute.type, axis.high)}"


# --- from the document ----------------------------------------------------------------------------------------------


def _attribute(
    number: int, each: AttributeDocument, schema: SchemaDocument, cutoff: float, file: str | None
) -> Attribute:
    def wrong(key: str, message: str) -> ConfigError:
        return ConfigError(message, file=file, key=f"attributes.{each.name}.{key}")

    _check_keys(each, schema, wrong)
    axis = _axis(each, wrong)
    default = each.default
    if default is not None:
        try:
            default = canonical(each.type, default)
        except ValueError as error:
            raise wrong("default", str(error)) from None
        if not axis.holds(key_of(each.type, default)):
            raise wrong("default", "it lies outside the domain")
    length_max = int(max(cutoff, CUTOFF_MIN) * SIDE)
    return Attribute(number, each.name, each.type, axis, default, each.reversed_of, each.routed, length_max)


_Wrong = Callable[[str, str], ConfigError]
_WITH_BOUNDS: Final = {Type.INT, Type.FLOAT, Type.DECIMAL, Type.TIMESTAMP}


def _check_keys(each: AttributeDocument, schema: SchemaDocument, wrong: _Wrong) -> None:
    """Raise `ConfigError` for keys that an attribute of this type needs, or cannot have."""
    for key in ("low", "high"):
        is_there = getattr(each, key) is not None
        if each.type in _WITH_BOUNDS and not is_there:
            raise wrong(key, f"an attribute of type {each.type} needs it: the domain decides how subscriptions spread")
        if is_there and each.type not in _WITH_BOUNDS | {Type.STRING}:
            raise wrong(key, f"an attribute of type {each.type} has none")
    if each.network is not None and each.type is not Type.IP:
        raise wrong("network", f"it is for type ip, not {each.type}")
    if each.reversed_of is None:
        return
    source = next((other for other in schema.attributes if other.name == each.reversed_of), None)
    if source is None or source.type is not Type.STRING or source.reversed_of is not None:
        raise wrong("reversed_of", "expected the name of another attribute of type string")
    if each.type is not Type.STRING:
        raise wrong("type", "an attribute with reversed_of is of type string")
    if each.default is not None:
        raise wrong("default", "an attribute with reversed_of gets its value from the other one")


def _axis(each: AttributeDocument, wrong: _Wrong) -> Axis:
    if each.type is Type.BOOL:
        return WholeAxis(0, 1)
    if each.type is Type.IP:
        network = parse_network(each.network or _ALL_ADDRESSES)
        if network is None:
            raise wrong("network", f"expected a network such as 10.0.0.0/8, not {each.network}")
        return WholeAxis(network[0], network[1] - 1)
    low, high = (_bound(each, key, wrong) for key in ("low", "high"))
    if each.type is Type.STRING:
        if high and not (low <= high or low.startswith(high)):
            raise wrong("high", f"it comes before low, {shown(low)}")
        return TextAxis(low, high)
    if low >= high:
        raise wrong("high", "it has to be above low")
    if each.type in (Type.INT, Type.TIMESTAMP):
        return WholeAxis(low, high)
    # A float that is read as a decimal is exact, so all numbers are compared with the domain as they are.
    axis = RealAxis(Decimal(low), Decimal(high))
    if not 0.0 < axis.length < float("inf"):
        raise wrong("high", "high and low lie too far apart, or too near, for arithmetic with doubles")
    return axis


def _bound(each: AttributeDocument, key: str, wrong: _Wrong) -> Key:
    value = getattr(each, key)
    if value is None:
        return ""
    try:
        return key_of(each.type, canonical(each.type, value))
    except ValueError as error:
        raise wrong(key, str(error)) from None


assert set(VIEWS) == set(Type), "every type of the filter language has a place in the space"
