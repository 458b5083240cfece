"""The parts of uvicorn that a daemon uses, imported without what they need for uvicorn's command line only.

The package imports its command line, which imports click, and what reads a configuration of logs from a file. All of it
would stay in the daemon's memory for ever: 5 MB.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Final

_LEFT_OUT: Final = {
    "uvicorn.main": ("Server", "main", "run"),
    "logging.config": (),
    "configparser": ("RawConfigParser",),
}
"""Modules, and what is imported from each by name."""


def _import_without_the_rest() -> None:
    if "uvicorn" in sys.modules:
        return
    stand_ins = {name: ModuleType(name) for name in _LEFT_OUT if name not in sys.modules}
    for name, stand_in in stand_ins.items():
        vars(stand_in).update(dict.fromkeys(_LEFT_OUT[name]))
    sys.modules.update(stand_ins)
    try:
        importlib.import_module("uvicorn")
    finally:
        for name in stand_ins:
            del sys.modules[name]  # so that code which needs the real module can still import it


_import_without_the_rest()

from uvicorn.config import Config as Config  # noqa: E402  # after the line above, or it would import all of it
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpToolsProtocol  # noqa: E402  # see above
from uvicorn.server import ServerState as ServerState  # noqa: E402  # see above
