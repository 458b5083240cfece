"""The plugin offers what its clients are promised, and so does the fake of the front's tests: see `PubSubService`."""

from __future__ import annotations

import inspect

import pytest

from protocols.pubsub.plugin import PubSub
from protocols.pubsub.service import PubSubService
from tests.support.fake_pubsub import FakePubSub

PROMISED = [
    name for name, value in vars(PubSubService).items() if inspect.isfunction(value) and not name.startswith("_")
]


def of_the_plugin(plugin: PubSub) -> PubSubService:
    """Here the types are compared, by the type checker."""
    return plugin


@pytest.mark.parametrize("kind", [PubSub, FakePubSub])
@pytest.mark.parametrize("name", PROMISED)
def test_parameters_are_those_that_are_promised(kind: type, name: str) -> None:
    promised, offered = (
        [(each.name, each.kind, each.default) for each in inspect.signature(getattr(owner, name)).parameters.values()]
        for owner in (PubSubService, kind)
    )
    assert offered == promised


def test_there_is_something_to_compare() -> None:
    assert {"publish", "subscribe", "explain"} <= set(PROMISED)
