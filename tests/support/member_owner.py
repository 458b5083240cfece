"""The node of a stream's member, where a test plays it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peerd.messages import Message, PeerRef
from protocols.dissemination.tree.owner import MemberOwner


def hook(owner: MemberOwner, **hooks: Callable[..., Any]) -> None:
    """From now on a node does this."""
    for name in hooks:
        assert hasattr(MemberOwner, name), name
    vars(owner).update(hooks)


def owner(send: Callable[[PeerRef, Message], None], **hooks: Callable[..., Any]) -> MemberOwner:
    """A node that sends in this way."""
    found = MemberOwner()
    hook(found, send=send, **hooks)
    return found
