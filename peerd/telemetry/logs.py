"""Log lines for people and log collectors: structlog, with the standard library's loggers routed through it.

JSON off a terminal, coloured on one; always one line a record. Events (`peerd.telemetry.schema`) are the machine's
record of what happened; a log line is for whoever reads it now, and carries no promise beyond its keys ``ts``,
``level``, ``event``, ``logger``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["auto", "json", "console"]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
JOURNAL_PRIORITIES: Final = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
"""The priorities that systemd's journal reads from a ``<n>`` at the start of a line (sd-daemon(3))."""
TRACEBACK_LENGTH_MAX: Final = 8192
FIRST_KEYS: Final = ("ts", "level", "event", "logger")

# A peer's text must not break a line or drive a terminal.
_CONTROL_CHARACTERS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def configure_logging(
    level: str = "info", format: LogFormat = "auto", stream: TextIO | None = None, *, cache_loggers: bool = True
) -> None:
    """Set up logging for the whole process; call it once, early.

    ``stream`` defaults to whatever ``sys.stderr`` is when a line is written. A call below ``level`` costs one empty
    function call. With ``cache_loggers`` a logger keeps the format that it had when first used, so a process that
    configures again (tests) passes False; `set_level` reaches those loggers, too. Start uvicorn with
    ``log_config=None``, or it replaces this.

    Raises `ValueError` for a level that is not in `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    output = stream if stream is not None else sys.stderr
    as_json = format == "json" or (format == "auto" and not output.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        flatten_exception,
    ]
    render: list[Processor] = [order_keys, _json_renderer()] if as_json else [escape_controls, _console_renderer()]
    if _is_journal(output):
        render = [remember_priority, *render[:-1], _with_priority(render[-1])]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=_Logger,
        logger_factory=lambda name="peerd": LineLogger(name, stream),
        cache_logger_on_first_use=cache_loggers,
    )
    _route_standard_library(stream, shared, render)
    set_level(level)


def set_level(level: str) -> None:
    """Write lines from this level on, of loggers that were used before, too. Raises `ValueError` for an unknown one."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    filtering = structlog.make_filtering_bound_logger(LEVELS[level])
    for method in _FILTERED:
        setattr(_Logger, method, getattr(filtering, method))
    logging.getLogger().setLevel(LEVELS[level])
    # A line for each scrape and status call would only be noise; the level debug shows them.
    logging.getLogger("uvicorn.access").setLevel(LEVELS["debug"] if level == "debug" else LEVELS["warning"])
    logging.getLogger("asyncio").setLevel(max(LEVELS[level], LEVELS["info"]))


class _Logger(structlog.make_filtering_bound_logger(0)):  # type: ignore[misc]  # the library makes the class when it runs
    """The class of our loggers. A logger keeps its class once it was used, so `set_level` changes the methods."""


_FILTERED: Final = tuple(
    name
    for name in ("debug", "info", "warning", "warn", "error", "critical", "fatal", "exception", "log", "msg")
    if hasattr(_Logger, name)
)


class LineLogger:
    """Takes the finished lines from structlog, and writes each of them with one call."""

    def __init__(self, name: str, stream: TextIO | None) -> None:
        self.name = name
        self._stream = stream

    def msg(self, message: str) -> None:
        """Write one line."""
        stream = self._stream if self._stream is not None else sys.stderr
        with contextlib.suppress(OSError):  # a closed terminal or a full disk must not make a daemon fail
            stream.write(message + "\n")
            stream.flush()

    debug = info = warning = error = critical = exception = msg
    warn = fatal = log = msg


class _StandardHandler(logging.Handler):
    """Writes the records of libraries that use ``logging`` (uvicorn, asyncio) like ours."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._lines = LineLogger("logging", stream)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.msg(self.format(record))


def _route_standard_library(stream: TextIO | None, shared: list[Processor], render: list[Processor]) -> None:
    handler = _StandardHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render], foreign_pre_chain=shared
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.captureWarnings(True)


def flatten_exception(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Turn ``exc_info`` into ``error`` (type and text) and ``traceback``, both without a line break.

    The traceback reads outermost first: ``daemon.py:12 run > node.py:80 start``. The cut keeps the end, where the
    error is.
    """
    information = event.pop("exc_info", None)
    if information is True:
        information = sys.exc_info()
    error = information[1] if isinstance(information, tuple) else information
    if not isinstance(error, BaseException):
        return event
    frames = traceback.extract_tb(error.__traceback__)
    event["error"] = " ".join(f"{type(error).__name__}: {error}".splitlines())
    places = " > ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in frames)
    event["traceback"] = places[-TRACEBACK_LENGTH_MAX:]
    return event


def order_keys(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Put the keys that the documentation promises first, and leave the others in their order."""
    first = {key: event[key] for key in FIRST_KEYS if key in event}
    return {**first, **{key: value for key, value in event.items() if key not in first}}


def escape_controls(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escape values, so that none can break the line, or send the terminal an escape sequence."""
    return {
        key: value.translate(_CONTROL_CHARACTERS) if isinstance(value, str) else value for key, value in event.items()
    }


def remember_priority(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Keep the level's journal priority until the line is rendered."""
    event["_priority"] = JOURNAL_PRIORITIES.get(str(event.get("level")), 6)
    return event


def _with_priority(renderer: Processor) -> Processor:
    def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
        priority = event.pop("_priority", 6)
        return f"<{priority}>{renderer(logger, method, event)!s}"

    return render


def _json_renderer() -> Processor:
    return structlog.processors.JSONRenderer(default=str)


def _console_renderer() -> Processor:
    renderer: Callable[..., Any] = structlog.dev.ConsoleRenderer(
        colors=True, timestamp_key="ts", pad_event_to=24, sort_keys=False
    )

    def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
        # The renderer has just turned values that are not strings into text, so their line ends are escaped here.
        return str(renderer(logger, method, event)).replace("\n", "\\n")

    return render


def _is_journal(stream: TextIO) -> bool:
    """Whether the stream is the journal's: systemd names its device and inode."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
