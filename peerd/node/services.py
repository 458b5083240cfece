"""The built-in services of every node. This is the one list of them: a node, the configuration files of daemons and of
scenarios, and the simulator take them from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from peerd.api import PluginConfig
from peerd.errors import Bug
from peerd.quantities import setting
from peerd.services.records.plugin import RecordStore
from peerd.services.service import Service

SERVICES: Final[tuple[type[Service], ...]] = (RecordStore,)
"""The services in the order in which they start; when the node leaves, the last one hands over first."""


def make_services(configs: Mapping[str, PluginConfig]) -> list[Service]:
    """Make each service, with its configuration by name or its defaults. Raises `Bug` for an unknown name."""
    unknown = sorted(configs.keys() - {kind.name for kind in SERVICES})
    if unknown:
        raise Bug(f"no service is called {', '.join(unknown)}")
    return [kind(configs.get(kind.name)) for kind in SERVICES]


def service_sections() -> dict[str, Any]:
    """The services' tables in a configuration, as fields for ``pydantic.create_model``."""
    return {kind.name: (kind.Config, setting(kind.Config(), kind.purpose)) for kind in SERVICES}


def service_configs(configuration: object) -> dict[str, PluginConfig]:
    """Return each service's configuration from one that has the `service_sections`."""
    return {kind.name: getattr(configuration, kind.name) for kind in SERVICES}
