"""One sample and its golden bytes for every message, so that the wire format cannot change unnoticed.

``python -m tests.support.golden`` adds samples of new messages to the file. It never changes an existing line: the
bytes of a message that is out in the world are what other nodes send.
"""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import Any

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, Struct, registered
from peerd.plugins import find_plugins
from peerd.wire.codec import encode
from peerd.wire.frames import frame_bytes

GOLDEN = Path(__file__).parent.parent / "unit" / "golden_messages.json"


def all_messages() -> list[type[Message]]:
    """Every message of the kernel and of the installed plugins, in type-id order."""
    import peerd.node.node  # registers the overlay's and the swap layer's messages
    import peerd.wire.enrolment  # registers its messages, and those of trust
    import peerd.wire.handshake  # noqa: F401  # registers its messages

    find_plugins()
    return [kind for type_id, kind in registered().items() if type_id < 0x7E00]


def sample(kind: type[Message]) -> Message:
    """An instance with a distinct value in every field."""
    return typing.cast(Message, _instance(kind))


def _instance(kind: type[Struct]) -> object:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = kind.__struct_fields__
    return kind(**{name: _value(hints[name], number) for number, name in enumerate(fields, 1)})


def _value(annotation: Any, number: int) -> object:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *constraints = typing.get_args(annotation)
        least = max((getattr(rule, "min_length", 0) or 0 for rule in constraints), default=0)
        value = _value(inner, number)
        most = min((rule.le for rule in constraints if getattr(rule, "le", None) is not None), default=value)
        if isinstance(value, float) and value > typing.cast(float, most):
            return typing.cast(float, most) / (number + 1)
        return value * least if isinstance(value, bytes) and least else value
    if origin is tuple:
        return (_value(typing.get_args(annotation)[0], number), _value(typing.get_args(annotation)[0], number + 1))
    if origin in (types.UnionType, typing.Union):
        return _value(next(each for each in typing.get_args(annotation) if each is not types.NoneType), number)
    if annotation is NodeId:
        return NodeId((number << 120) + number)
    if annotation is PeerRef:
        return PeerRef(NodeId((1 << 120) + 1), "text2", 3)
    plain: dict[Any, object] = {
        int: number,
        float: number + 0.5,
        bool: True,
        str: f"text{number}",
        bytes: b"%x" % (number % 16),
    }
    return plain[annotation] if annotation in plain else _instance(annotation)


def golden_line(kind: type[Message]) -> dict[str, str]:
    """Name and frame bytes of a message's sample."""
    return {"message": kind.__name__, "frame": frame_bytes(encode(sample(kind))).hex()}


def load() -> dict[str, dict[str, str]]:
    """The committed lines by type id."""
    return typing.cast(dict[str, dict[str, str]], json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {})


def main() -> None:
    """Add what is new."""
    known = load()
    for kind in all_messages():
        known.setdefault(f"{kind.TYPE_ID:#06x}", golden_line(kind))
    GOLDEN.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
