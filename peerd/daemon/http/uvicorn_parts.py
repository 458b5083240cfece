"""The parts of uvicorn that a daemon uses, imported without uvicorn's command line.

The package imports its command line, which imports click; both would stay in the daemon's memory for ever: 4.5 MB.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Final

_COMMAND_LINE: Final = "uvicorn.main"


def _import_without_command_line() -> None:
    if "uvicorn" in sys.modules:
        return
    stand_in = ModuleType(_COMMAND_LINE)
    vars(stand_in).update(dict.fromkeys(("Server", "main", "run")))
    sys.modules[_COMMAND_LINE] = stand_in
    try:
        importlib.import_module("uvicorn")
    finally:
        del sys.modules[_COMMAND_LINE]  # so that code which needs the real module can still import it


_import_without_command_line()

from uvicorn.config import Config as Config  # noqa: E402  # after the line above, or it would import all of it
from uvicorn.protocols.http.h11_impl import H11Protocol as H11Protocol  # noqa: E402  # see above
from uvicorn.server import ServerState as ServerState  # noqa: E402  # see above
