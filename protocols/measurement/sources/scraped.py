"""A program on this machine that shows its metrics to Prometheus: some of them become measurements of this node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final
from urllib.parse import SplitResult, urlsplit

from protocols.measurement.sources.source import MeasurementSource

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest answer that is read."""
LINE_LENGTH_MAX: Final = 1024
"""Longest line that is parsed, and longest selector: the parser's time grows with the square of the labels."""
SELECTED_LENGTH_MAX: Final = 512 * 1024
"""Characters of all series that are selected. The worst of them keep a worker busy for some seconds."""
SILENCE_S_MAX: Final = 5.0
"""The other end may be silent for so long."""
_METRIC: Final = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)")
_URL: Final = re.compile(r"http://(?:[A-Za-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[1-9][0-9]{0,4})?(?:/[!-~]*)?")
_LOOPBACK: Final = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|::1")
_SELECTOR: Final = re.compile(_METRIC.pattern + r"[ \t]*(?:\{.*\})?[ \t]*")


Selector = tuple[str, Mapping[str, str]]
"""Which series: those of a metric that have these labels with these values. An empty value: without the label."""


def parse_selector(text: str) -> Selector:
    """Read ``node_load1`` or ``http_requests_total{code="500"}``. Raises ``ValueError``."""
    wrong = ValueError(f'expected a metric such as node_load1, or http_requests_total{{code="500"}}, not {text[:80]!r}')
    try:
        [(metric, labels, value)] = _samples(f"{text} 1")  # a selector is what stands before the value
    except (ValueError, IndexError) as error:
        raise wrong from error
    if _SELECTOR.fullmatch(text) is None or value != 1:
        raise wrong
    return metric, labels


def _samples(lines: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Raises ``ValueError`` and ``IndexError`` for what is not in the format of Prometheus."""
    from prometheus_client.parser import text_string_to_metric_families  # here: most daemons scrape nothing

    if len(lines) > SELECTED_LENGTH_MAX or any(len(line) > LINE_LENGTH_MAX for line in lines.split("\n")):
        raise ValueError(f"more than {LINE_LENGTH_MAX} characters in a line, or than {SELECTED_LENGTH_MAX} in all")
    for family in text_string_to_metric_families(lines):
        yield from ((sample.name, sample.labels, sample.value) for sample in family.samples)


def select(text: str, selectors: Mapping[str, Selector]) -> dict[str, float]:
    """Return what each selector finds in an exposition, several series summed. Raises ``ValueError``, ``IndexError``.

    One that finds nothing is left out. Lines of other metrics are not parsed. The last line has to have its end: of
    what was cut off, the last number might be a part of one.
    """
    if not text.endswith("\n"):
        raise ValueError("the answer was cut off")
    wanted = {metric for metric, _ in selectors.values()}
    lines = (line for line in text.split("\n") if (match := _METRIC.match(line)) and match[1] in wanted)
    values: dict[str, float] = {}
    for metric, labels, value in _samples("\n".join(lines)):
        for name, (of, where) in selectors.items():
            if metric == of and all(labels.get(label, "") == each for label, each in where.items()):
                values[name] = values.get(name, 0.0) + value
    return values


def check_url(url: str, *, is_remote_allowed: bool) -> SplitResult:
    """Take a URL apart. Raises ``ValueError`` for one that is not to be asked."""
    if _URL.fullmatch(url) is None or urlsplit(url).port == 0:  # which raises, too, for one that is too large
        raise ValueError("expected a URL such as http://127.0.0.1:9100/metrics")
    parts = urlsplit(url)
    if not is_remote_allowed and _LOOPBACK.fullmatch(parts.hostname or "") is None:
        raise ValueError("expected a loopback address; allow_remote = true has other machines asked, too")
    return parts


class ScrapedSource(MeasurementSource):
    """Asks ``url``, as `check_url` has taken it apart. It follows no redirection, and knows no proxy."""

    may_block: ClassVar[bool] = True

    def __init__(self, name: str, period_s: float, url: SplitResult, selectors: Mapping[str, Selector]) -> None:
        super().__init__(name, period_s)
        self._url, self._selectors = url, selectors

    def read(self, now: float) -> dict[str, float]:
        """What the selectors find now. Raises ``OSError``, ``HTTPException``, ``ValueError`` and ``IndexError``."""
        from http.client import HTTPConnection  # here: most daemons scrape nothing

        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        connection = HTTPConnection(self._url.hostname or "", self._url.port or 80, timeout=SILENCE_S_MAX)
        try:
            connection.request("GET", path, headers={"Accept": "text/plain;version=0.0.4"})
            response = connection.getresponse()
            body = response.read(BODY_BYTES_MAX + 1)
        finally:
            connection.close()
        if response.status != 200 or response.length or len(body) > BODY_BYTES_MAX:
            wanted = f"expected 200, all bytes that it announced, and at most {BODY_BYTES_MAX}"
            raise ValueError(f"{self._url.geturl()} answered {response.status}, {len(body)} bytes: {wanted}")
        return select(body.decode(), self._selectors)
