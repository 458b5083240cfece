"""How a node says that it does not know a message.

A request gets it as its reply, and so ends at once. For one-way messages a peer is told now and then, for each type.
`UnknownMessage` is itself never answered, so two nodes cannot keep each other busy with it.
"""

from __future__ import annotations

from peerd.messages import U16, Message, message


@message(0x0070, bytes_max=16)
class UnknownMessage(Message):
    """The receiver's messages of this type reach nobody here: no plugin of this node handles them."""

    type_id: U16
