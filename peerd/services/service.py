"""What every built-in service is: a plugin of each node that other plugins build on."""

from __future__ import annotations

from typing import ClassVar

from peerd.api import Plugin


class Service(Plugin):
    """Base of the services in `peerd.node.services.SERVICES`. Its configuration is a table of its own, ``[<name>]``."""

    purpose: ClassVar[str]
    """What it is for, in one sentence: the description of its table in the configuration."""

    def plugin_disabled(self, name: str) -> None:
        """A plugin was taken out of service, perhaps this one: end what it has here, and do not call it back."""
