"""An honest daemon of the tests, for the fork server: the installed plugins and `Bystander`."""

from __future__ import annotations

from pathlib import Path

from peerd.cluster import node_process
from peerd.config import LoadedConfig, load_config
from peerd.daemon.admin.server import start_admin
from peerd.daemon.loops import run as run_loop
from peerd.daemon.service import Daemon
from peerd.errors import ExitCode
from peerd.plugins import find_plugins, make_plugins, plugin_models, usable_fronts
from peerd.telemetry.logs import configure_logging
from tests.hostile.bystander import Bystander, BystanderFront


def prepare() -> None:
    """Import all that `run` will need."""
    node_process.prepare()


def run(config_file: Path) -> int:
    """Be the daemon until SIGTERM."""
    loaded = load_config([config_file], environment={}, plugin_models=plugin_models(find_plugins()))
    configure_logging(loaded.config.telemetry.log_level, loaded.config.telemetry.log_format)
    return run_loop(_serve(loaded))


async def _serve(loaded: LoadedConfig) -> ExitCode:
    plugins = [*make_plugins(find_plugins(), loaded.config.protocols), Bystander()]
    fronts = {**usable_fronts(), Bystander.name: BystanderFront()}
    return await Daemon(loaded, plugins=plugins, fronts=fronts, start_admin=start_admin).run()
