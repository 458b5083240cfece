"""What the guarantee's objects want done."""

from __future__ import annotations

from peerd.frozen import Frozen
from peerd.ids import NodeId
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.guarantee.words import Measurement


class SendTo(Frozen):
    """Send this to that node."""

    to: NodeId
    message: CacheAsk | CacheUpdate


class ProviderLost(Frozen):
    """This node wants a measurement, and who was to provide it does not."""

    measurement: Measurement
    provider: NodeId


class ProviderLate(Frozen):
    """This node wants a measurement, and who provides it, not its owner, does not keep it as young as it is wanted."""

    measurement: Measurement


class Disbelieved(Frozen):
    """A provider, not its owner, has told something of a measurement that its owner has not signed.

    ``is_forged``: its owner's signature is wrong; else there is none that this node can check.
    """

    measurement: Measurement
    provider: NodeId
    is_forged: bool


class Moved(Frozen):
    """What this node knows of a measurement has changed: another interval, or nothing any more."""

    measurement: Measurement


Effect = SendTo | ProviderLost | ProviderLate | Disbelieved | Moved
