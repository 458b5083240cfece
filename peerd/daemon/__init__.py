"""The daemon: the Host for one real node, on asyncio."""

from __future__ import annotations

import sys

if "rich" not in sys.modules and "structlog" not in sys.modules:
    # structlog loads rich, if it is installed, to draw tracebacks on terminals. peerd's logs do not use that, and it
    # takes 3 MiB, for as long as the daemon runs. Where a module is None, importing it fails as if there were none.
    sys.modules["rich"] = None  # type: ignore[assignment]  # what it does is documented, typeshed does not have it
    try:
        import structlog  # noqa: F401  # it is loaded here so that others find it loaded
    finally:
        del sys.modules["rich"]
