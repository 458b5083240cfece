"""The table ``[protocols.rollcall]`` of the configuration."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from peerd.api import PluginConfig
from peerd.quantities import Duration, between_durations, setting

LABEL_LENGTH_MAX: Final = 64


class RollCallConfig(PluginConfig):
    """How long a caller waits, and what this node is called."""

    patience: Annotated[Duration, between_durations("10ms", "1h")] = setting("2s", "Time for answers to come in.")
    label: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] = setting("", "Name of this node for people.")
