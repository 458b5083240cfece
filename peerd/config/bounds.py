"""Settings of plugins that one of the kernel bounds: a plugin's own check sees only its own table."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from peerd.quantities import format_duration, limiting_key, misfit


def check_bounds(config: BaseModel, plugins: Mapping[str, BaseModel]) -> None:
    """Raise the error for a duration of a plugin that is longer than the setting of ``config`` that bounds it."""
    for name, table in plugins.items():
        for key, field in type(table).model_fields.items():
            section, _, limiting = limiting_key(field).partition(".")
            if not limiting:
                continue
            most = getattr(getattr(config, section), limiting)
            if getattr(table, key) > most:
                told = f"expected at most {section}.{limiting}, which is {format_duration(most)}"
                raise misfit(f"protocols.{name}.{key}", f"{told}: lower this one, or raise that one on all nodes")
