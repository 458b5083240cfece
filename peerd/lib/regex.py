"""Google's RE2, for regular expressions that users give: its running time is linear in the length of the text.

RE2 is loaded when it is first needed, because it is an extra: there are no wheels of it for musl. Its callers turn
`EngineAbsent` into an error of their own that says what cannot be done without it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


class EngineAbsent(Exception):
    """google-re2 is not installed."""


def load_engine() -> ModuleType:
    """The module ``re2``. Raises `EngineAbsent`."""
    try:
        import re2
    except ImportError:
        raise EngineAbsent from None
    return re2  # type: ignore[no-any-return]  # the library has no types


def engine_options(*, memory_bytes: int, captures: bool, dot_matches_newline: bool) -> Any:
    """Return RE2's options for compiling a pattern: no log output, bounded memory. Raises `EngineAbsent`."""
    options = load_engine().Options()
    options.log_errors = False
    options.never_capture = not captures
    options.dot_nl = dot_matches_newline
    options.max_mem = memory_bytes
    return options


def error_reason(error: Exception) -> str:
    """Return the text of an error that RE2 raised."""
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
