"""The settings with which a node is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from peerd.api import PluginConfig
from peerd.messages import PeerRef
from peerd.overlay.config import OverlayConfig
from peerd.swap.config import SwapConfig


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """``services``: configurations of built-in services by name; those that are not named have their defaults."""

    peer: PeerRef
    boot_epoch: int
    overlay: OverlayConfig = field(default_factory=OverlayConfig)
    swap: SwapConfig = field(default_factory=SwapConfig)
    services: Mapping[str, PluginConfig] = field(default_factory=dict)
    profile: str = "local"
    version: str = "0"
