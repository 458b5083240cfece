"""A forked child of the fork server, which becomes one daemon."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from peerd.config import load_config
from peerd.daemon.admin.api import admin_app
from peerd.daemon.admin.server import start_admin
from peerd.daemon.loops import loop_factory
from peerd.daemon.service import serve
from peerd.errors import ConfigError
from peerd.plugins import find_plugins, guarded, plugin_models, usable_fronts
from peerd.telemetry.logs import configure_logging

_IMPORTED_EARLY = (start_admin, admin_app)
"""A daemon imports these late. Here they are imported before the fork, so that the children share their memory."""


def prepare() -> None:
    """Import the plugins, what they have for the API, and the event loop; importing this module has done the rest."""
    find_plugins()
    loop_factory()
    for name, front in usable_fronts(_leave_it_to_the_daemon).items():
        with suppress(ConfigError):
            guarded(name, "router", partial(front.router, None))  # for what it imports; no node is there yet


def _leave_it_to_the_daemon(error: ConfigError) -> None:
    """A front that cannot be used: each daemon says so in its log."""


def run(config_file: Path) -> int:
    """Be the daemon until SIGTERM. The environment of the cluster's starter does not change its configuration."""
    read = partial(load_config, [config_file], environment={}, plugin_models=plugin_models(find_plugins()))
    loaded = read()
    configure_logging(loaded.config.telemetry.log_level, loaded.config.telemetry.log_format)
    return serve(loaded, read_again=read)
