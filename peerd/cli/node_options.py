"""Options that plugins add to the commands that make nodes: a folder to read, say.

Typer makes a command of a function's parameters, so `with_node_options` gives the function one parameter more for each
option, and hands it what was given for them as settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from peerd.front import Front, NodeOption
from peerd.plugins import gather, usable_fronts, warn_on_stderr

SETTINGS: Final = "protocol_settings"
"""The parameter that gets the settings: dotted keys to values."""


@dataclass(frozen=True, slots=True)
class Owned:
    """An option, and the plugin whose settings it makes."""

    plugin: str
    option: NodeOption

    def settings(self, text: str) -> dict[str, object]:
        """Dotted key to value. Raises ``typer.BadParameter``."""
        try:
            found = self.option.settings(text)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=self.option.flag) from error
        return {f"protocols.{self.plugin}.{key}": value for key, value in found.items()}

    def parameter(self, name: str) -> inspect.Parameter:
        """Return the parameter from which typer makes the option."""
        option = typer.Option(self.option.flag, metavar=self.option.metavar, help=self.option.help)
        annotation = Annotated[str | None, option]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_node_options(
    options: Callable[[Front], Sequence[NodeOption]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command that has a parameter called `SETTINGS`.

    A plugin that cannot be imported has no options here; the command says what is wrong with it when it reads
    settings. A front that fails to name its options only causes a warning and has none: every `--help` runs this code.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in signature.parameters.values()
            if parameter.name != SETTINGS
        ]
        added = {f"node_option_{number}": each for number, each in enumerate(_owned(options, list(_flags(own))))}

        def command(**given: Any) -> None:
            settings: dict[str, object] = {}
            for name, each in added.items():
                if (text := given.pop(name)) is not None:
                    settings |= each.settings(text)
            function(**given, **{SETTINGS: settings})

        parameters = [*own, *(each.parameter(name) for name, each in added.items())]
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(command)["__signature__"] = signature.replace(parameters=parameters)
        return command

    return decorate


def _owned(options: Callable[[Front], Sequence[NodeOption]], taken: Sequence[str]) -> list[Owned]:
    found = gather(
        usable_fronts(lambda error: None),
        "option",
        lambda front: ((option.flag, Owned(front.name, option)) for option in options(front)),
        taken,
        warn=warn_on_stderr,
    )
    return list(found.values())


def _flags(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    """The command's own options."""
    for parameter in parameters:
        yield f"--{parameter.name.strip('_').replace('_', '-')}"
        for part in getattr(parameter.annotation, "__metadata__", ()):
            yield from (text for text in getattr(part, "param_decls", None) or () if text.startswith("-"))
            if isinstance(default := getattr(part, "default", None), str):
                yield default
