"""What measurements are called.

``cpu`` is one quantity of a node; ``rtt@<32 hex digits>`` is one of a node and another, the *peer* that is named.
"""

from __future__ import annotations

import re
from typing import Final

from peerd.ids import NodeId, format_id, parse_id

NAME_LENGTH_MAX: Final = 48
"""Characters of a name, without the peer's."""
FULL_NAME_LENGTH_MAX: Final = NAME_LENGTH_MAX + 33
"""With it."""
NAME: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{NAME_LENGTH_MAX - 1}}}")
_FULL: Final = re.compile(rf"({NAME.pattern})(?:@([0-9a-f]{{32}}))?")


def full_name(name: str, peer: NodeId | None = None) -> str:
    """The name of a measurement, with its peer if there is one."""
    return name if peer is None else f"{name}@{format_id(peer)}"


def is_name(text: str) -> bool:
    """Whether it is one, with its peer or without."""
    return _FULL.fullmatch(text) is not None


def split_name(text: str) -> tuple[str, NodeId | None]:
    """The name and the peer. Raises ``ValueError`` for what is no name."""
    match = _FULL.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text[:80]!r} is no name of a measurement: lower-case letters, digits and _, beginning with a letter, at "
            f"most {NAME_LENGTH_MAX}; for one of two nodes @ and the other's id in 32 hex digits"
        )
    name, peer = match.groups()
    return name, None if peer is None else parse_id(peer)
