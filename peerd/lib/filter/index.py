"""Which of many filters an event matches, without trying them one by one.

Each alternative of a filter's normal form has a slot. An `IndexColumn` answers for one attribute and view with sets of
slots, and the intersection of all columns is the answer but for residual tests (patterns), which are tried on what is
left, each distinct one at most once an event. Many regular expressions on one attribute are tried at once, as an RE2
set.

`add` and `remove` are amortised: a new filter is first tried by itself, with the other new ones, and built into the
columns with them when they have become many (a 32nd of all); a removed one is masked until then. `match` is exact
at any time, and equal tests of different filters are shared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from peerd.lib.filter.column import Draft, IndexColumn, bits_of, positions
from peerd.lib.filter.evaluate import Matcher, key_tester, matcher
from peerd.lib.filter.meaning import Fits, Presence
from peerd.lib.filter.normal import Conjunct, NormalForm, normal_form
from peerd.lib.filter.patterns import PatternKind, engine, regex_options
from peerd.lib.filter.tree import Node
from peerd.lib.filter.values import STRICT, View, find, read_text

K = TypeVar("K", bound=Hashable)

NEW_MIN: Final = 64
"""New filters are built into the columns only when there are more than this many of them."""
NEW_SHARE: Final = 32
"""In a large index new filters are built in, and removed ones forgotten, when they are more than one in so many."""
BUCKETS_MAX: Final = 1280
"""Buckets of all columns together. A bucket takes two bits for each slot: 320 bytes a slot in all."""


_ColumnPlan = tuple[bool, Callable[[Any], Any], list[Any], bytes | None, list[int], bool, int, IndexColumn]
"""A column as `FilterIndex.match` needs it: whether it reads numbers, how it reads, its bounds, which of them lie after
their keys, its pairs, whether it has single keys, its unconstrained slots, itself."""
_Plan = tuple[str, bool, int, int | None, tuple[_ColumnPlan, ...]]
"""An attribute: its name, whether the name has dots, the pairs (see `peerd.lib.filter.column`) that are possible when
it is missing and when it is present (``None``: all), its columns. Tuples, because they are the fastest to unpack."""


@dataclass(slots=True)
class _Drafts:
    """The data from which the next columns are built."""

    columns: dict[tuple[str, View], Draft] = field(default_factory=dict)
    absent: dict[str, list[int]] = field(default_factory=dict)
    present: dict[str, list[int]] = field(default_factory=dict)
    residual: dict[int, tuple[Fits, ...]] = field(default_factory=dict)

    def add(self, slot: int, conjunct: Conjunct, shared: dict[Fits, Fits]) -> None:
        """Give a slot to an alternative."""
        for (name, view), ranges in conjunct.ranges().items():
            self._column(name, view).add(slot, ranges)
        fits = tuple(shared.setdefault(test, test) for test in conjunct.tests if isinstance(test, Fits))
        if fits:
            self.residual[slot] = fits
        for test in conjunct.tests:
            if isinstance(test, Presence):
                (self.present if test.present else self.absent).setdefault(test.name, []).append(slot)

    def _column(self, name: str, view: View) -> Draft:
        return self.columns.setdefault((name, view), Draft(name, view))

    def names(self) -> list[str]:
        """List every attribute that some slot looks at."""
        found = {name: None for name, _ in self.columns} | dict.fromkeys([*self.absent, *self.present])
        return list(found | {test.name: None for fits in self.residual.values() for test in fits})


class FilterIndex(Generic[K]):
    """Filters by key. Values of events are read as `peerd.lib.filter.values.STRICT` does.

    ``absent_matches``: conditions on a missing attribute are true, as `peerd.lib.filter.evaluate.matcher` has it.
    """

    def __init__(self, filters: Iterable[tuple[K, Node]] = (), *, absent_matches: bool = False) -> None:
        self._absent_matches = absent_matches
        self._slots: dict[K, int | tuple[int, ...]] = {}
        self._keys: list[K | None] = []
        self._free: list[int] = []
        self._alive = 0
        self._removed = 0
        self._several = 0
        """How many slots belong to filters that have more than one slot."""
        self._new: dict[K, tuple[NormalForm, Matcher]] = {}
        self._columns: list[IndexColumn] = []
        self._plan: list[_Plan] = []
        self._width = 0
        self._alive_pair = 0
        self._lower_half = 0
        self._presence: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """For each attribute, the slots that need it to be missing, and those that need it to be present."""
        self._residual: dict[int, tuple[Fits, ...]] = {}
        self._residual_bits = 0
        self._testers: dict[Fits, Callable[[str], bool]] = {}
        self._regexes: dict[str, RegexSet] = {}
        for key, node in filters:
            self._insert(key, node)
        self.settle()

    def __len__(self) -> int:
        return len(self._slots) + len(self._new)

    def __contains__(self, key: object) -> bool:
        return key in self._slots or key in self._new

    def add(self, key: K, node: Node) -> None:
        """Add a filter. Raises ``KeyError`` for a key that is there, `FilterTooLarge` as `normal_form` does."""
        self._insert(key, node)
        if len(self._new) > max(NEW_MIN, len(self._slots) // NEW_SHARE):
            self.settle()

    def remove(self, key: K) -> None:
        """Forget a filter. Raises ``KeyError`` when there is none."""
        if key in self._new:
            del self._new[key]
            return
        own = self._slots.pop(key)
        for slot in own if isinstance(own, tuple) else (own,):
            self._alive ^= 1 << slot
            self._keys[slot] = None
            self._removed += 1
        self._alive_pair = self._pair(self._alive)
        if self._removed > max(NEW_MIN, len(self._keys) // NEW_SHARE):
            self.settle()

    def match(self, event: Mapping[str, Any]) -> list[K]:
        """The keys of all filters that are true for the event, each once, in no particular order."""
        bits = self._matching(event) if self._alive else 0
        slots = positions(bits)
        keys: list[Any] = [self._keys[slot] for slot in slots]
        # A filter with several alternatives may match by more than one of them, and is listed once.
        if self._several and bits & self._several:
            keys = list(dict.fromkeys(keys))
        if self._new:
            keys += [key for key, (_, matches) in self._new.items() if matches(event)]
        return keys

    # --- matching -------------------------------------------------------------------------------------------------

    def _matching(self, event: Mapping[str, Any]) -> int:
        """Return the slots whose conditions the event fulfils."""
        # The slots that are still possible and those that are sure are one number: one AND narrows both.
        width, pair = self._width, self._alive_pair
        asked: list[tuple[IndexColumn, Any, int]] = []
        get = event.get
        for name, dotted, if_absent, if_present, columns in self._plan:
            value = get(name)
            if value is None and (not dotted or (value := find(event, name)) is None):
                pair &= if_absent
            else:
                if if_present is not None:
                    pair &= if_present
                for is_number, read, bounds, after, pairs, has_keys, unconstrained, column in columns:
                    # Floats are read here and not by a function, as the call would cost as much as the search.
                    # NaN is the one float that is not equal to itself; it matches nothing.
                    if is_number and type(value) is float and value == value:
                        key = value
                    elif (key := read(value)) is None:
                        pair &= unconstrained
                        continue
                    bucket = bisect_right(bounds, key)
                    # Where a cut lies after its key, the key itself still belongs to the bucket before.
                    if after and bucket and after[bucket - 1] and bounds[bucket - 1] == key:
                        bucket -= 1
                    own = pairs[bucket]
                    if has_keys:
                        own |= column.at_key(key)
                    pair &= own
                    asked.append((column, key, bucket))
            if not pair:
                return 0
        possible = pair >> width
        sure = pair & self._lower_half
        if possible != sure:
            sure |= self._decided(possible ^ sure, asked)
        return self._fitting(event, sure) if self._residual_bits else sure

    def _decided(self, doubtful: int, asked: list[tuple[IndexColumn, Any, int]]) -> int:
        """Return the doubtful slots that are satisfied in every column that could not tell by its bucket."""
        decided = doubtful
        for slot in positions(doubtful):
            for column, key, bucket in asked:
                if not column.holds(slot, key, bucket):
                    decided ^= 1 << slot
                    break
        return decided

    def _fitting(self, event: Mapping[str, Any], bits: int) -> int:
        """Return the slots without those that have a residual test which fails."""
        if not (left := bits & self._residual_bits):
            return bits
        known: dict[Fits, bool] = {}
        texts: dict[str, str | bool] = {}
        for slot in positions(left):
            for test in self._residual[slot]:
                if (fits := known.get(test)) is None:
                    if test.name not in texts:
                        texts[test.name] = self._text(find(event, test.name))
                    fits = known[test] = self._fits(test, texts[test.name], known)
                if not fits:
                    bits ^= 1 << slot
                    break
        return bits

    def _text(self, value: object) -> str | bool:
        """The text of an attribute, else what all tests of it are."""
        text = read_text(value)
        return text if text is not None else value is None and self._absent_matches

    def _fits(self, test: Fits, text: str | bool, known: dict[Fits, bool]) -> bool:
        if isinstance(text, bool):
            return text
        together = self._regexes.get(test.name) if test.pattern.kind is PatternKind.MATCHES else None
        # One call answers for all expressions on this attribute; the next tests find their answers in `known`.
        if together is not None and (found := together.match(text)) is not None:
            known.update(found)
            return found[test]
        return self._testers[test](text)

    # --- building -------------------------------------------------------------------------------------------------

    def _insert(self, key: K, node: Node) -> None:
        if key in self:
            raise KeyError(f"there is a filter with the key {key!r:.80}")
        how = self._absent_matches
        self._new[key] = (normal_form(node, absent_matches=how), matcher(node, absent_matches=how))

    def settle(self) -> None:
        """Build all new filters in and forget the removed ones now: worth it after many changes, before many events."""
        if not self._new and not self._removed:
            return
        drafts = self._kept()
        self._free = [slot for slot, key in enumerate(self._keys) if key is None]
        self._removed = 0
        shared = {test: test for fits in drafts.residual.values() for test in fits}
        for key, (form, _) in self._new.items():
            taken = tuple(self._take(key) for _ in form.conjuncts)
            self._slots[key] = taken[0] if len(taken) == 1 else taken
            for slot, conjunct in zip(taken, form.conjuncts, strict=True):
                drafts.add(slot, conjunct, shared)
        self._new.clear()
        self._build(drafts)

    def _take(self, key: K) -> int:
        if self._free:
            slot = self._free.pop()
            self._keys[slot] = key
            return slot
        self._keys.append(key)
        return len(self._keys) - 1

    def _kept(self) -> _Drafts:
        """Return what the present columns hold for the slots that are in use."""
        drafts = _Drafts()

        def alive(slot: int) -> bool:
            return self._keys[slot] is not None

        for column in self._columns:
            drafts.columns[column.name, column.view] = column.draft(alive)
        for name, presence in self._presence.items():
            for target, slots in zip((drafts.absent, drafts.present), presence, strict=True):
                if kept := [slot for slot in slots if alive(slot)]:
                    target[name] = kept
        drafts.residual = {slot: fits for slot, fits in self._residual.items() if alive(slot)}
        return drafts

    def _build(self, drafts: _Drafts) -> None:
        self._alive = bits_of(slot for slot, key in enumerate(self._keys) if key is not None)
        self._several = bits_of(slot for own in self._slots.values() if isinstance(own, tuple) for slot in own)
        self._width = len(self._keys)
        self._alive_pair = self._pair(self._alive)
        self._lower_half = (1 << self._width) - 1
        ends = sum(len(draft.ends) for draft in drafts.columns.values())
        used = [draft for draft in drafts.columns.values() if draft.used]
        self._columns = [draft.build(self._alive, self._width, ends // BUCKETS_MAX) for draft in used]
        self._residual = drafts.residual
        self._residual_bits = bits_of(drafts.residual)
        distinct = dict.fromkeys(test for fits in drafts.residual.values() for test in fits)
        self._testers = {test: key_tester(test) for test in distinct}
        self._regexes = _regex_sets(distinct)
        names = drafts.names()
        self._presence = {
            name: (tuple(drafts.absent.get(name, ())), tuple(drafts.present.get(name, ()))) for name in names
        }
        needing = _needing_text(drafts.residual)
        self._plan = [self._planned(name, needing.get(name, 0)) for name in names]
        # Attributes of most filters come first: once no slot is left, the other attributes need not be read.
        self._plan.sort(key=lambda plan: plan[2].bit_count())

    def _planned(self, name: str, needing_text: int) -> _Plan:
        absent, present = self._presence[name]
        own = [column for column in self._columns if column.name == name]
        if self._absent_matches:
            if_absent = self._pair(self._alive & ~bits_of(present))
        else:  # without the attribute, a slot is possible only if none of its tests needs a value
            if_absent = self._pair(self._alive & ~(bits_of(present) | needing_text))
            for column in own:
                if_absent &= column.unconstrained
        if_present = self._pair(self._alive & ~bits_of(absent)) if absent else None
        return name, "." in name, if_absent, if_present, tuple(map(_column_plan, own))

    def _pair(self, bits: int) -> int:
        return bits << self._width | bits


def _column_plan(column: IndexColumn) -> _ColumnPlan:
    is_number, read = column.view is View.NUMBER, STRICT[column.view]
    bounds = (column.bounds, column.bounds_after, column.pairs)
    return is_number, read, *bounds, bool(column.keys), column.unconstrained, column


def _needing_text(residual: dict[int, tuple[Fits, ...]]) -> dict[str, int]:
    """For each attribute, the slots whose patterns need its text."""
    found: dict[str, list[int]] = {}
    for slot, fits in residual.items():
        for test in fits:
            found.setdefault(test.name, []).append(slot)
    return {name: bits_of(slots) for name, slots in found.items()}


def _regex_sets(tests: Iterable[Fits]) -> dict[str, RegexSet]:
    by_name: dict[str, list[Fits]] = {}
    for test in tests:
        if test.pattern.kind is PatternKind.MATCHES:
            by_name.setdefault(test.name, []).append(test)
    return {name: RegexSet(own) for name, own in by_name.items() if len(own) >= REGEX_SET_MIN}


REGEX_SET_MIN: Final = 8
"""An RE2 set is made when one attribute has at least this many expressions."""
REGEX_SET_SIZE: Final = 128
"""Expressions in one RE2 set. Larger sets have automata that fill their memory."""
REGEX_SET_BYTES_MAX: Final = 8 * 1024 * 1024
"""The memory that one RE2 set may take, its automaton included."""


class RegexSet:
    """The truth of many tests with MATCHES for a text."""

    def __init__(self, tests: Sequence[Fits]) -> None:
        chunks = [tests[start : start + REGEX_SET_SIZE] for start in range(0, len(tests), REGEX_SET_SIZE)]
        self._chunks = [(chunk, _compiled(chunk)) for chunk in chunks]

    def match(self, text: str) -> dict[Fits, bool] | None:
        """Whether each test is true; ``None`` when a set ran out of memory: then they have to be tried one by one."""
        data, found = text.encode(), {}
        for tests, compiled in self._chunks:
            matched = set() if compiled is None else set(compiled.Match(data) or ())
            # The last expression matches everything: if even that one is missing, RE2 has run out of memory.
            if len(tests) not in matched:
                return None
            for index, test in enumerate(tests):
                found[test] = (index in matched) is not test.negated
        return found


def _compiled(tests: Sequence[Fits]) -> Any | None:
    """The RE2 set, with one expression more that matches every text; ``None`` when it is too large."""
    library = engine()
    compiled = library.Set.FullMatchSet(regex_options(REGEX_SET_BYTES_MAX))
    try:
        for test in tests:
            compiled.Add(test.pattern.text.encode())
        compiled.Add(b".*")
        compiled.Compile()
    except library.error:
        return None
    return compiled
