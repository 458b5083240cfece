"""The front of publish/subscribe: its pieces for the HTTP API, client, command line, simulator and pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from peerd.front import Command, Front, LazyCommand, LedgerLines, RingTable, SparkTable

if TYPE_CHECKING:
    from fastapi import APIRouter

    from peerd.client import Client
    from peerd.cluster.demo import DemoPart
    from peerd.lab.experiment import Experiment
    from peerd.sim.checkers import Checker
    from peerd.sim.hostile.member import Behaviour
    from peerd.sim.swarm.work import SwarmWork
    from protocols.pubsub.front.client import PubSubClient

HERE = __name__


class PubSubFront(Front):
    """Each piece is in a module of its own beside this one."""

    name = "pubsub"

    def router(self, service: Any) -> APIRouter:
        from protocols.pubsub.front.http import router

        return router(service)

    def client(self, client: Client) -> PubSubClient:
        from protocols.pubsub.front.client import PubSubClient

        return PubSubClient(client)

    def commands(self) -> Mapping[str, Callable[[], Command]]:
        return {
            "schema": LazyCommand("Declare and show the schemas of published events.", f"{HERE}.schema:app"),
            "publish": LazyCommand("Publish events.", f"{HERE}.publish:publish"),
            "subscribe": LazyCommand(
                "Receive the events whose content matches a filter.", f"{HERE}.subscribe:subscribe"
            ),
            "subs": LazyCommand("List, change and end subscriptions of this daemon.", f"{HERE}.subs:app"),
            "tree": LazyCommand("Draw the tree that keeps a schema's subscriptions.", f"{HERE}.tree:tree"),
            "mqtt": LazyCommand("Serve MQTT clients of this machine.", f"{HERE}.mqtt.command:mqtt"),
            "explain": LazyCommand("Tell why an event did or did not arrive.", f"{HERE}.explain:explain"),
        }

    def demo(self) -> DemoPart:
        from protocols.pubsub.front.demo.part import PubSubDemo

        return PubSubDemo()

    def checkers(self) -> Mapping[str, type[Checker]]:
        from protocols.pubsub.front.checkers import OrderAtLeaves, SubscriptionsConserved, SubscriptionsInPlace

        return {
            "pubsub_conservation": SubscriptionsConserved,
            "pubsub_subscriptions": SubscriptionsInPlace,
            "pubsub_order": OrderAtLeaves,
        }

    def swarm_work(self) -> type[SwarmWork]:
        from protocols.pubsub.front.simulator import PubSubTraffic

        return PubSubTraffic

    def experiments(self) -> Sequence[Experiment]:
        from protocols.pubsub.front.lab.experiments import EXPERIMENTS

        return EXPERIMENTS

    def behaviours(self) -> Mapping[str, type[Behaviour]]:
        from protocols.pubsub.front.hostile import BEHAVIOURS

        return BEHAVIOURS

    def panels(self) -> Sequence[Mapping[str, Any]]:
        from protocols.pubsub.front.panels import PANELS

        return PANELS

    def ledger(self) -> LedgerLines:
        from protocols.pubsub.front.tables import LEDGER

        return LEDGER

    def ring_tables(self) -> Sequence[RingTable]:
        from protocols.pubsub.front.ring_table import PUBSUB

        return (PUBSUB,)

    def tables(self) -> Sequence[SparkTable]:
        from protocols.pubsub.front.tables import TABLES

        return TABLES
