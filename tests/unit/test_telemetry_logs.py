"""Log lines: their keys, their single line, their price when nobody listens."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from peerd.telemetry.logs import LEVELS, LogFormat, configure_logging

Configure = Callable[..., io.StringIO]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def configure() -> Iterator[Configure]:
    """Configure logging on a stream of the test's; everything is as before afterwards."""
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    others = {name: logging.getLogger(name).level for name in ("asyncio", "uvicorn.access")}

    def apply(level: str = "info", format: LogFormat = "auto", stream: io.StringIO | None = None) -> io.StringIO:
        stream = stream if stream is not None else io.StringIO()
        configure_logging(level, format, stream, cache_loggers=False)
        return stream

    yield apply
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, level in others.items():
        logging.getLogger(name).setLevel(level)


def only_line(stream: io.StringIO) -> str:
    text = stream.getvalue()
    assert text.endswith("\n")
    (line,) = text.splitlines()
    return line


def test_json_off_a_terminal(configure: Configure) -> None:
    stream = configure()
    structlog.get_logger("peerd.link").info("link.up", peer="ab", rtt_s=0.5, text="two\nlines")
    line: dict[str, Any] = json.loads(only_line(stream))
    assert list(line) == ["ts", "level", "event", "logger", "peer", "rtt_s", "text"]
    assert (line["level"], line["event"], line["logger"]) == ("info", "link.up", "peerd.link")
    assert line["ts"].endswith("Z")
    assert line["text"] == "two\nlines"


def test_coloured_on_a_terminal_and_one_line(configure: Configure) -> None:
    stream = configure(stream=Terminal())
    structlog.get_logger("peerd").warning("peer.misbehaved", detail="a\nb\x1b[31m\x9b", where=Path("x\ny"))
    line = only_line(stream)
    assert "peer.misbehaved" in line
    assert "\x1b[" in line  # ours: the level is coloured
    assert "\x1b[31mb" not in line
    assert "\\x1b[31m\\x9b" in line


def test_format_can_be_forced(configure: Configure) -> None:
    stream = configure(format="json", stream=Terminal())
    structlog.get_logger("peerd").info("x")
    assert json.loads(only_line(stream))["event"] == "x"


@pytest.mark.parametrize("format", ["json", "console"])
def test_an_exception_is_one_line(configure: Configure, format: LogFormat) -> None:
    stream = configure(format=format)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        structlog.get_logger("peerd").exception("plugin.failed")
    line = only_line(stream)
    assert "ValueError: first second" in line
    assert "test_telemetry_logs.py:" in line
    assert "test_an_exception_is_one_line" in line


def test_standard_library_is_routed_through(configure: Configure) -> None:
    stream = configure()
    logging.getLogger("uvicorn.error").error("port %d is taken", 80, exc_info=OSError("busy"))
    line = json.loads(only_line(stream))
    assert (line["event"], line["logger"], line["level"]) == ("port 80 is taken", "uvicorn.error", "error")
    assert line["error"] == "OSError: busy"


def test_warnings_become_lines(configure: Configure) -> None:
    stream = configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old\nthing", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    assert json.loads(only_line(stream))["logger"] == "py.warnings"


def test_levels(configure: Configure) -> None:
    stream = configure("warning")
    log = structlog.get_logger("peerd")
    log.info("quiet")
    logging.getLogger("asyncio").info("quiet too")
    logging.getLogger("uvicorn.access").info("GET /metrics")
    assert stream.getvalue() == ""
    log.error("loud")
    assert json.loads(only_line(stream))["event"] == "loud"


def test_access_lines_only_for_debug(configure: Configure) -> None:
    stream = configure("info")
    logging.getLogger("uvicorn.access").info("GET /metrics")
    assert stream.getvalue() == ""
    stream = configure("debug")
    logging.getLogger("uvicorn.access").info("GET /metrics")
    assert json.loads(only_line(stream))["event"] == "GET /metrics"


def test_a_call_below_the_level_renders_nothing(configure: Configure) -> None:
    configure("info")

    class Expensive:
        def __repr__(self) -> str:
            raise AssertionError("rendered")

        __str__ = __repr__

    structlog.get_logger("peerd").debug("x", value=Expensive())


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud' is not one of debug, info"):
        configure_logging("loud")


def test_levels_are_the_standard_librarys() -> None:
    assert {name: logging.getLevelName(name.upper()) for name in LEVELS} == LEVELS


def test_journal_priority(configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        configure("info", "auto", stream)
        structlog.get_logger("peerd").error("loud")
        logging.getLogger("uvicorn").warning("less")
        stream.seek(0)
        first, second = stream.read().splitlines()
    assert first.startswith('<3>{"ts"')
    assert second.startswith('<4>{"ts"')
    assert "_priority" not in first + second
