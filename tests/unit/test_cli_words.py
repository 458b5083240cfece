"""What is wrong with the value of an option is said in our words, for every option of every command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from peerd.cli.app import build_app
from peerd.cli.main import main
from peerd.errors import ExitCode
from tests.support.foreign_words import foreign_words

TOO_SMALL, TOO_LARGE = "-99999999999999999999", "99999999999999999999"


def commands(group: TyperGroup, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*words, name))
        elif isinstance(command, TyperCommand):
            yield (*words, name), command


def wrong_values() -> Iterator[tuple[str, ...]]:
    """Command lines, each with a value that its option cannot have: no number, none of its words, out of its bounds."""
    everything = get_command(build_app())
    assert isinstance(everything, TyperGroup)
    for words, command in commands(everything):
        for option in command.params:
            if not isinstance(option, TyperOption):
                continue
            flag = max(option.opts, key=len)
            bounds = (option.min is not None, option.max is not None)
            values = [value for value, is_bound in zip((TOO_SMALL, TOO_LARGE), bounds, strict=True) if is_bound]
            if any(bounds) or flag == "--output":
                values.append("nothing")
            yield from ((*words, f"{flag}={value}") for value in values)


WRONG = sorted(set(wrong_values()))


def test_there_are_such_options() -> None:
    assert len(WRONG) > 50


@pytest.mark.parametrize("line", WRONG, ids=" ".join)
def test_a_wrong_value_is_refused_in_our_words(line: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert "Invalid value for" in told and not foreign_words(told)
