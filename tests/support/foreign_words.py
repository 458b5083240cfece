"""Words of the libraries that we use, which no error of ours may have: whoever reads it has never heard of them.

While the tests run, every error that peerd raises on purpose is looked at when it is made, so that the whole suite
searches all texts of errors that it meets.
"""

from __future__ import annotations

import re
from typing import Any, Final

from peerd.errors import ClientRefusal, PeerdError

FOREIGN: Final = re.compile(
    r"Input should|should have at (?:least|most)|should match pattern|Field required|Extra inputs|Value error,|"
    r"Assertion failed,|Input tag|using discriminator|valid (?:integer|dictionary|boolean|string)\b|validation error|"
    r"pydantic|lxml|elementpath|libxml|XML_[A-Z]+_|err:[A-Z]{4}[0-9]{4}|xmlSAX|msgspec|lark\."
)


def foreign_words(text: str) -> list[str]:
    """The words of libraries in a text."""
    return FOREIGN.findall(text)


def watch_errors() -> None:
    """From now on an error with such words is an ``AssertionError`` where it is made."""
    for kind in (PeerdError, ClientRefusal):
        kind.__init__ = _watched(kind.__init__)  # type: ignore[method-assign]  # the one place that all errors pass


def _watched(begin: Any) -> Any:
    def checked(self: Exception, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        found = [word for part in self.args if isinstance(part, str) for word in foreign_words(part)]
        assert not found, f"an error quotes a library ({found}): {self.args}"

    return checked
