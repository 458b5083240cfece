"""What the gateway counts, and shows its clients under topics that begin with ``$SYS/``.

Here a client finds what its version of MQTT has no other way to say: how many of its messages were refused, and why the
last one was. What others do is shown as sums only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from protocols.pubsub.front.mqtt.packets import ApplicationMessage
from protocols.pubsub.front.mqtt.session import Session
from protocols.pubsub.front.mqtt.topics import TopicError, checked_levels

PREFIX: Final = "$SYS/"
LOOK_S: Final = 1.0
"""How often it is looked whether a number has changed."""


@dataclass(slots=True)
class Counts:
    """Since the gateway began."""

    clients: int = 0
    """Connected now."""
    published: int = 0
    refused: int = 0
    """Messages that can never be published as they are."""
    unanswered: int = 0
    """Of these, those whose senders could not be told in an acknowledgement."""
    too_large: int = 0
    """Messages that were not sent because the client takes no packet so large."""

    def topics(self, session: Session) -> dict[str, str]:
        """The value of each topic, as this client sees it."""
        return {
            "$SYS/peerd/clients/connected": str(self.clients),
            "$SYS/peerd/messages/published": str(self.published),
            "$SYS/peerd/messages/refused": str(self.refused),
            "$SYS/peerd/messages/refused/unanswered": str(self.unanswered),
            "$SYS/peerd/messages/too-large": str(self.too_large),
            "$SYS/peerd/client/refused": str(session.refused),
            "$SYS/peerd/client/refused/last": session.last_refusal,
        }

    async def messages(self, session: Session, topic_filter: str) -> AsyncGenerator[ApplicationMessage, None]:
        """The numbers as retained messages, and each again when it has changed."""
        wanted, told = checked_levels(topic_filter), dict[str, str]()
        while True:
            for topic, value in self.topics(session).items():
                if told.get(topic) != value and _fits(wanted, topic.split("/")):
                    is_first, told[topic] = topic not in told, value
                    yield ApplicationMessage(topic, value.encode(), is_retained=is_first)
            await asyncio.sleep(LOOK_S)


def check(topic_filter: str) -> None:
    """Raise `TopicError` for a topic filter below ``$SYS/`` that can never match."""
    wanted = checked_levels(topic_filter)
    if not any(_fits(wanted, topic.split("/")) for topic in Counts().topics(Session("", 0))):
        raise TopicError(f"there is no topic like {topic_filter!r:.80} here; {PREFIX}# has all that there are")


def _fits(wanted: list[str], levels: list[str]) -> bool:
    if wanted[-1] == "#":
        wanted, levels = wanted[:-1], levels[: len(wanted) - 1]
    return len(wanted) == len(levels) and all(each in ("+", level) for each, level in zip(wanted, levels, strict=True))
