"""The action that a scenario may ask of this plugin: ``stream``, to create, publish and subscribe."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from peerd.errors import ConfigError, Unavailable
from peerd.front import Report as Reporter
from peerd.quantities import parse_duration
from peerd.sim.engine import mark_of
from peerd.sim.simulation import Place
from peerd.sim.world import ACTION_MARK
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.models import StreamSpec, StreamSubscriptionRequest, StreamSubscriptionView, StreamView
from protocols.dissemination.service import StreamRefused

DOINGS = ("create", "publish", "subscribe", "received")
KNOWN = {
    "do",
    "name",
    "kind",
    "policy",
    "settings",
    "durable",
    "producer_gone",
    "interest",
    "after",
    "payloads",
    "rate",
    "count",
    "seed",
}


def stream(place: Place, arguments: Mapping[str, Any], report: Reporter) -> None:
    """Action ``stream``, by ``do``.

    create: ``kind``, ``policy``, ``settings``, ``durable``, ``producer_gone``. publish: ``payloads``, of which
    ``count`` are drawn at random, one every ``rate``, such as "100ms". subscribe: ``interest``, ``after``. received: a
    row for each subscription of this node.
    """
    for name in sorted(set(arguments) - KNOWN):
        raise ConfigError(f"unknown argument; known here: {', '.join(sorted(KNOWN))}", key=f"arguments.{name}")
    doing = arguments.get("do")
    if doing not in DOINGS:
        raise ConfigError(f"expected one of {', '.join(DOINGS)}", key="arguments.do")
    name = str(arguments.get("name", "stream"))
    try:
        if doing == "create":
            _create(place, name, arguments, report)
        elif doing == "publish":
            _publish(place, name, arguments, report)
        elif doing == "subscribe":
            _subscribe(place, name, arguments, report)
        else:
            _received(place, name, report)
    except (StreamRefused, Unavailable) as error:
        report({"outcome": "refused", "reason": str(error)})


def _create(place: Place, name: str, arguments: Mapping[str, Any], report: Reporter) -> None:
    spec = StreamSpec(
        name=name,
        kind=arguments.get("kind", "classes"),
        policy=arguments.get("policy", "first_fit"),
        settings=dict(arguments.get("settings", {})),
        producer_gone=arguments.get("producer_gone", "wait"),
        durable=bool(arguments.get("durable", False)),
    )

    def done(answer: StreamView | Exception) -> None:
        report(
            {"outcome": "created"} if isinstance(answer, StreamView) else {"outcome": "refused", "reason": str(answer)}
        )

    plugin_of(place).changes.create(spec, done)


def _publish(place: Place, name: str, arguments: Mapping[str, Any], report: Reporter) -> None:
    payloads = [str(each) for each in arguments.get("payloads", ["a"])]
    count, gap_s = int(arguments.get("count", 1)), parse_duration(arguments.get("rate", "100ms"))
    rng = Random(arguments.get("seed", 0))

    def one(left: int) -> None:
        if not left or not place.is_live:
            return
        try:
            plugin_of(place).publishers.publish(name, rng.choice(payloads).encode())
        except (StreamRefused, Unavailable) as error:
            report({"outcome": "refused", "reason": str(error)})
            return
        engine = place.driver.engine
        engine.schedule(engine.now + gap_s, mark_of(place.index, ACTION_MARK), one, left - 1)

    one(count)


def _subscribe(place: Place, name: str, arguments: Mapping[str, Any], report: Reporter) -> None:
    after = arguments.get("after")
    request = StreamSubscriptionRequest(stream=name, interest=arguments.get("interest", ""), after=after, name=name)

    def done(answer: StreamSubscriptionView | Exception) -> None:
        if isinstance(answer, StreamSubscriptionView):
            report({"outcome": answer.state, "interest": answer.interest})
        else:
            report({"outcome": "refused", "reason": str(answer)})

    plugin_of(place).subscribing.subscribe(request, done)


def _received(place: Place, name: str, report: Reporter) -> None:
    for view in plugin_of(place).subscribing.subscriptions():
        if view.stream == name:
            report(
                {"outcome": view.state, "interest": view.interest, "received": view.received, "gaps": view.missed_gaps}
            )
