"""``peerd run``: the daemon in the foreground.

Parsed with argparse and not typer: this process becomes the daemon, and what it imports it holds for ever.
"""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from peerd.cli.locations import standard_files
from peerd.config import LoadedConfig, load_config
from peerd.errors import ConfigError
from peerd.system.hangup import ignore_hangups

if TYPE_CHECKING:
    from peerd.daemon.service import Daemon


def run(arguments: Sequence[str]) -> int:
    """Run the daemon until it is told to stop; returns its exit code. Raises `ConfigError`, `Unavailable`."""
    ignore_hangups()
    gc.disable()  # what is imported stays, and looking through it again and again is a tenth of the start: see `serve`
    read_again = reader(arguments)
    loaded = read_again()
    from peerd.daemon.service import serve
    from peerd.telemetry.logs import configure_logging

    telemetry = loaded.config.telemetry
    configure_logging(telemetry.log_level, telemetry.log_format)
    _check_identity(loaded)
    announce = _announce if sys.stderr.isatty() else _say_nothing
    return serve(loaded, read_again=read_again, announce=announce)


def load(arguments: Sequence[str]) -> LoadedConfig:
    """Load the configuration that a command line names. Raises `ConfigError`; ``SystemExit`` for a bad command line."""
    return reader(arguments)()


def reader(arguments: Sequence[str]) -> Callable[[], LoadedConfig]:
    """Return a function that reads that configuration, now and again later, for the plugins that are installed then."""
    from peerd.plugins import find_plugins, plugin_models

    options = _parser().parse_args(arguments)
    return partial(
        load_config,
        options.config or standard_files(),
        environment=os.environ,
        sets=options.set,
        flags={"node.listen": options.listen, "node.bootstrap": options.bootstrap, "node.state_dir": options.state_dir},
        plugin_models=plugin_models(find_plugins()),
    )


def _announce(daemon: Daemon) -> None:
    """Tell the person who started it by hand that it is ready, where its socket is, and how to ask it."""
    config, peer = daemon.config, daemon.peer
    state = "is ready" if daemon.node.is_ready else "runs, and is still looking for the ring"
    places = [f"peers {peer.address}", f"operators {config.admin.socket}"]
    if daemon.http_port is not None:
        places.append(f"probes http://127.0.0.1:{daemon.http_port}")
    if daemon.data_addresses:
        places.append(f"data clients {', '.join(daemon.data_addresses)}")
    print(f"peerd {state}: {'; '.join(places)}", file=sys.stderr)
    command = f"peerd status --socket {shlex.quote(config.admin.socket)}"
    print(f"ask it with: {command}; stop it with Ctrl-C", file=sys.stderr)


def _say_nothing(daemon: Daemon) -> None:
    """Print nothing: without a terminal, the log says the same."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="peerd run",
        description="Run the daemon in the foreground until SIGTERM or SIGINT.",
        epilog="Later settings win: defaults, profile, files in order, PEERD_SECTION__KEY variables, --set, flags. "
        "Without --config: /etc/peerd/peerd.toml and /etc/peerd/conf.d, else what `peerd init` made for this user.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, nargs="+", action="extend", help="TOML files, or folders of them")
    add("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help="one setting; may be repeated")
    add("--listen", metavar="HOST:PORT", help="node.listen")
    add("--bootstrap", metavar="HOST:PORT", nargs="+", action="extend", help="node.bootstrap")
    add("--state-dir", metavar="DIR", help="node.state_dir")
    return parser


def _check_identity(loaded: LoadedConfig) -> None:
    """Raises `ConfigError` when there is no key yet: before the first `peerd init` that is the usual mistake."""
    key_file = loaded.config.tls_files().key_file
    if loaded.config.tls.mode == "mutual" and not key_file.exists():
        raise ConfigError("this node has no identity yet: make one with `peerd init`", file=str(key_file))
