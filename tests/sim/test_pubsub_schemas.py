"""Schemas on a simulated ring: known everywhere, alive while they are used, and never two of one name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring, run_to_rest
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.models import Declared, SchemaEnded
from protocols.pubsub.names import schema_key
from protocols.pubsub.schema.book import SchemaBook
from protocols.pubsub.schema.event_schema import EventSchema
from tests.support.pubsub_schemas import DOCUMENT, BookPlugin, names
from tests.support.records import holders

LEASE_S = PubSubConfig().lease
TWO = {**DOCUMENT, "version": 2, "attributes": [*DOCUMENT["attributes"], {"name": "venue", "type": "string"}]}
Answer = tuple[EventSchema | None, str]


def book_ring(count: int, seed: int) -> Simulation:
    return ring(count, seed, plugins=lambda index: [BookPlugin()])


def book(place: Place) -> SchemaBook:
    plugin = place.node.plugins[BookPlugin.name]
    assert isinstance(plugin, BookPlugin)
    return plugin.book


def declared(simulation: Simulation, *wanted: tuple[Place, Any]) -> list[Answer]:
    """Have nodes declare schemas at the same time; their answers in this order."""
    found: dict[int, Answer] = {}
    for index, (place, document) in enumerate(wanted):

        def done(answer: Declared | Exception, place: Place = place, index: int = index) -> None:
            made = book(place).get(answer.name) if isinstance(answer, Declared) else None
            found[index] = made, "" if made else str(answer)

        book(place).declare(document, done)
    simulation.run_until(lambda: len(found) == len(wanted), limit_s=60.0)
    return [found[index] for index in range(len(wanted))]


def fetched(simulation: Simulation, places: Sequence[Place], name: str = "trades") -> list[Answer]:
    """What each of the nodes gets for a name."""
    found: list[Answer] = []
    for place in places:
        book(place).fetch(name, lambda schema, why: found.append((schema, why)))
    simulation.run_until(lambda: len(found) == len(places), limit_s=60.0)
    return found


def test_what_one_node_declares_all_others_know() -> None:
    simulation = book_ring(12, seed=1)
    first, *others = simulation.live_nodes()
    [(nothing, why)] = fetched(simulation, [first])
    assert nothing is None and why.startswith("there is no schema trades")
    [(made, warning)] = declared(simulation, (first, DOCUMENT))
    assert made is not None
    assert warning == ""
    answers = fetched(simulation, others)
    assert all(schema is not None and not schema.why_not_after(made) for schema, _ in answers)
    [(none, why)] = declared(simulation, (others[0], TWO))
    assert none is None and "belongs to node" in why, "another node's"
    declared(simulation, (first, TWO))
    simulation.run_for(LEASE_S / 2)
    for place in (first, *others):
        known = book(place).get("trades")
        assert known is not None
        assert known.version == 2, "a renewal has found the later version"


def test_a_schema_that_its_creator_ends_is_forgotten_everywhere_and_its_name_is_free() -> None:
    simulation = book_ring(12, seed=6)
    first, second, *rest = simulation.live_nodes()
    declared(simulation, (first, DOCUMENT))
    declared(simulation, (second, DOCUMENT))  # the same, which second keeps from now on, too
    fetched(simulation, rest)
    told: list[SchemaEnded | Exception] = []
    book(first).end("trades", told.append)
    simulation.run_until(lambda: bool(told), limit_s=60.0)
    assert isinstance(told[0], SchemaEnded), told
    simulation.run_for(2 * LEASE_S)
    assert [names(book(place)) for place in simulation.live_nodes()] == [[]] * 12
    different = {"name": "trades", "attributes": [{"name": "venue", "type": "string"}]}
    [(made, why)] = declared(simulation, (second, different))
    assert made is not None, why


def test_a_schema_outlives_all_nodes_that_hold_its_record() -> None:
    simulation = book_ring(14, seed=2)
    key = schema_key("trades")
    dying = holders(simulation, key)
    first, *rest = [place for place in simulation.live_nodes() if place not in dying]
    declared(simulation, (first, DOCUMENT))
    for place in dying:
        simulation.kill(place)
    run_to_rest(simulation)
    simulation.run_for(LEASE_S / 2)
    answers = fetched(simulation, rest)
    assert [schema.name if schema else why for schema, why in answers] == ["trades"] * len(rest)


def test_of_two_that_contradict_each_other_one_is_declared() -> None:
    simulation = book_ring(12, seed=3)
    one, other, third, *_ = simulation.live_nodes()
    different = {"name": "trades", "attributes": [{"name": "venue", "type": "string"}]}
    answers = declared(simulation, (one, DOCUMENT), (other, different))
    made = [schema for schema, _ in answers if schema is not None]
    assert len(made) == 1
    [why] = [why for schema, why in answers if schema is None]
    assert "belongs to node" in why
    [(seen, _)] = fetched(simulation, [third])
    assert seen is not None
    assert not seen.why_not_after(made[0])


def test_the_same_declared_twice_at_once_is_declared() -> None:
    simulation = book_ring(8, seed=4)
    places = simulation.live_nodes()[:2]
    answers = declared(simulation, *((place, DOCUMENT) for place in places))
    assert all(schema is not None for schema, _ in answers)


def test_a_schema_that_nobody_uses_lapses_unless_its_declarer_lives() -> None:
    simulation = book_ring(10, seed=5)
    first, second, *rest = simulation.live_nodes()
    declared(simulation, (first, DOCUMENT), (second, {**DOCUMENT, "name": "kept"}))
    simulation.kill(first)
    run_to_rest(simulation)
    simulation.run_for(2 * LEASE_S)
    [(gone, why)] = fetched(simulation, rest[:1])
    assert gone is None and why.startswith("there is no schema trades")
    [(kept, _)] = fetched(simulation, rest[:1], "kept")
    assert kept is not None
