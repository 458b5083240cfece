"""The filters that people give on the command line."""

from __future__ import annotations

import json
from typing import Any

import typer


def filter_of(typed: str) -> Any:
    """Text as it is, or a filter in JSON where it begins like one. Raises ``typer.BadParameter``."""
    if typed.lstrip()[:1] not in ("{", "["):
        return typed
    try:
        return json.loads(typed)
    except ValueError as error:
        raise typer.BadParameter(f"the filter begins like JSON, and is none: {error}") from error
