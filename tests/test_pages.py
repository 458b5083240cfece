"""The pages name what exists: commands and their options, files, targets of make, tests that run a block."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from typer.core import TyperArgument, TyperGroup
from typer.main import get_command

from peerd.cli.app import build_app
from peerd.cli.run import run
from tests.support.pages import MARKS, SHELL, Block, blocks, inline_code, pages, simple_commands
from tests.test_tidy import ROOT, report

PAGES = pages()
LANGUAGES = SHELL | {"python", "javascript", "toml", "json", "text", "mermaid"}
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_.:]*|\.\.\.|…")
"""A word that stands for another one, as in `peerd deny NODE`."""
EXAMPLE_COMMANDS = frozenset({"rollcall", "label"})
"""Commands of the example plugin, docs/examples/rollcall; tests/cluster/test_out_of_tree.py runs them."""
EXAMPLE_OPTIONS = frozenset({"--label"})
Command = Any
"""A command of typer's click. Newer versions of typer have a copy of click, older ones use the package."""
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
IN_THE_REPOSITORY = re.compile(r"(?<![\w/.-])(?:peerd|protocols|tests|docs|deploy|bench)/[\w./-]*\w")
MADE_BY_USERS = ("protocols/NAME", "peerd/clusters")
"""They look like paths of the repository and are patterns, or below the state directory of a user."""


@pytest.fixture(params=PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@cache
def options_of_run() -> frozenset[str]:
    """The options of `peerd run`, the one command that click does not parse."""
    from contextlib import redirect_stdout
    from io import StringIO

    told = StringIO()
    with redirect_stdout(told), pytest.raises(SystemExit):
        run(["--help"])
    return frozenset(re.findall(r"--[a-z-]+", told.getvalue()))


def command_offences(words: Sequence[str], is_whole: bool = True) -> Iterator[str]:
    """What is wrong with the words behind `peerd`; in a sentence (not ``is_whole``) values may be left out."""
    if words and words[0] in EXAMPLE_COMMANDS:
        return
    command, context, rest = _the_command(words)
    if isinstance(command, TyperGroup):
        # `peerd NAME ...` stands for any command, and `peerd sim` alone for the group.
        if rest and not PLACEHOLDER.fullmatch(rest[0]) and not rest[0].startswith("-"):
            yield f"there is no command `{context.command_path} {rest[0]}`"
        rest = [word for word in rest if word.startswith("-")]
    if context.command_path == "peerd run":
        yield from (
            f"`peerd run` has no option {word}"
            for word in rest
            if word.startswith("--") and word.partition("=")[0] not in options_of_run()
        )
        return
    try:
        values, _, _ = command.make_parser(context).parse_args([word for word in rest if word not in EXAMPLE_OPTIONS])
    except UsageError as error:
        if is_whole or type(error).__name__ == "NoSuchOption":
            yield f"`{context.command_path}`: {error}"
        return
    for parameter in command.params if is_whole else ():
        if isinstance(parameter, TyperArgument) and parameter.required and values.get(str(parameter.name)) is None:
            yield f"`{context.command_path}` needs {str(parameter.name).upper()}"


def _the_command(words: Sequence[str]) -> tuple[Command, typer.Context, list[str]]:
    """Walk down the groups as far as the words go."""
    command: Command = _root()
    context, rest = typer.Context(command, info_name="peerd"), list(words)
    while isinstance(command, TyperGroup) and rest:
        found = command.get_command(context, rest[0])
        if found is None and context.info_name == "sim" and not rest[0].startswith("-"):
            found, rest = command.get_command(context, "run"), ["run", *rest]  # `peerd sim FILE`
        if found is None:
            break
        command, context = found, typer.Context(found, info_name=rest.pop(0), parent=context)
    return command, context, rest


@cache
def _root() -> Command:
    return get_command(build_app())


def block_offences(block: Block) -> Iterator[str]:
    """What is wrong with one block."""
    if block.language not in LANGUAGES:
        yield f"language {block.language!r}; use one of {', '.join(sorted(LANGUAGES))}"
    if block.mark and (block.mark not in MARKS or not block.note):
        yield f"mark {block.mark!r}; use one of {', '.join(sorted(MARKS))}, a colon, and a reason or a file"
    if block.mark == "tested-by" and Path(block.page).name not in (ROOT / block.note).read_text("utf-8"):
        yield f"{block.note} does not read {block.page}"
    if block.language in SHELL:
        for step in block.steps():
            for command in simple_commands(step.command):
                yield from (f"line {step.line}: {offence}" for offence in _program_offences(command))


def _program_offences(words: list[str]) -> Iterator[str]:
    if "--" in words[:-1] and words[words.index("--") + 1] == "peerd":
        words = words[words.index("--") + 1 :]
    if words[0] == "peerd":
        yield from command_offences(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        for word in words[1:]:
            if "=" not in word and word not in targets:
                yield f"the Makefile has no target {word}"


def path_offences(text: str) -> Iterator[str]:
    """Paths of the repository that are not there."""
    for path in IN_THE_REPOSITORY.findall(text):
        if not path.startswith(MADE_BY_USERS) and not (ROOT / path).exists():
            yield f"there is no {path}"


def short_name_offences(text: str) -> Iterator[str]:
    """A short name in a table is in the folder of a whole path before it: `peerd/a/b.py`, `c.py`."""
    folders: list[Path] = []
    for line in text.splitlines():
        names = re.findall(r"`([^`]+)`", line) if line.startswith("|") else []
        whole = [(ROOT / name).parent for name in names if IN_THE_REPOSITORY.fullmatch(name) and name.endswith(".py")]
        folders = (whole or folders) if line.startswith("|") else []
        for name in names:
            if re.fullmatch(r"\w+\.py", name) and folders and not any((folder / name).exists() for folder in folders):
                yield f"there is no {name} in {folders[0].relative_to(ROOT)}"


def test_every_block_has_a_language_a_valid_mark_and_commands_that_exist(page: Path) -> None:
    offences = [f"{block.place}: {offence}" for block in blocks(page) for offence in block_offences(block)]
    assert not offences, report(offences)


def test_every_command_in_a_sentence_exists(page: Path) -> None:
    offences = []
    for line, code in inline_code(page):
        if code.startswith("peerd "):
            for command in simple_commands(code.replace("[", " ").replace("]", " ")):
                if command[0] == "peerd":
                    offences += [f"{page.name}:{line}: {it}" for it in command_offences(command[1:], is_whole=False)]
    assert not offences, report(offences)


def test_every_path_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    offences = [f"{page.name}: {offence}" for offence in path_offences(_without_blocks(text))]
    offences += [f"{page.name}: {offence}" for offence in short_name_offences(text)]
    assert not offences, report(offences)


def _without_blocks(text: str) -> str:
    """Return the text without blocks, and without links, which have a test of their own."""
    return re.sub(r"^```.*?^```$|\[[^]]*\]\([^)]*\)", "", text, flags=re.MULTILINE | re.DOTALL)


def test_every_link_leads_somewhere(page: Path) -> None:
    offences = [
        f"{page.name}: {target}"
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not offences, report(offences)


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    text = index.read_text("utf-8")
    missing = [page.name for page in PAGES if page.parent != ROOT and page != index and f"{page.name})" not in text]
    assert not missing, f"docs/README.md does not name {', '.join(missing)}"


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = [path.parent.relative_to(ROOT / "peerd") for path in (ROOT / "peerd").glob("*/__init__.py")]
    packages += [path.parent.relative_to(ROOT / "peerd") for path in (ROOT / "peerd").glob("*/*/__init__.py")]
    assert packages
    missing = [package.as_posix() for package in packages if f"`{package.name}/`" not in text]
    assert not missing, f"docs/architecture.md names no {', '.join(missing)}"


@pytest.mark.parametrize(
    ("line", "offence"),
    [
        ("peerd stauts", "no command `peerd stauts`"),
        ("peerd cluster jump", "no command `peerd cluster jump`"),
        ("peerd ring --chekc", "--chekc"),
        ("peerd cluster up -n", "-n"),
        ("peerd run --liste 1", "no option --liste"),
        ("peerd route", "needs"),
        ("make tets", "no target tets"),
        ("true && X=1 peerd ring | peerd --nonsense", "--nonsense"),
    ],
)
def test_the_check_of_commands_bites(line: str, offence: str) -> None:
    block = Block("page.md", 1, "sh", "", "", line + "\n")
    [found] = list(block_offences(block))
    assert offence in found


def test_the_check_of_commands_lets_good_ones_pass() -> None:
    text = """\
peerd cluster up -n 5 --data docs   # five daemons
PEERD_ACCESS_TOKEN=$(cat token) peerd aggregate 'count by status' \\
    --socket https://node1.example:7422
peerd run --config /etc/peerd/peerd.toml
runuser -u peerd -- peerd ring --check && make test PYTEST_ARGS="-k ring"
"""
    assert list(block_offences(Block("page.md", 1, "sh", "", "", text))) == []


def test_the_checks_of_marks_and_paths_bite() -> None:
    assert list(block_offences(Block("page.md", 1, "sh", "skip", "later", "true\n")))
    assert list(block_offences(Block("page.md", 1, "sh", "not-run", "", "true\n")))
    assert list(block_offences(Block("page.md", 1, "bash", "", "", "true\n")))
    assert list(block_offences(Block("page.md", 1, "sh", "tested-by", "tests/test_tidy.py", "true\n")))
    assert list(path_offences("see peerd/nowhere.py")) == ["there is no peerd/nowhere.py"]
    assert not list(short_name_offences("| `peerd/swap/layer.py` | the layer |\n| `reader.py` | the reader |\n"))
    assert list(short_name_offences("| `peerd/swap/layer.py` | the layer |\n| `nowhere.py` | nothing |\n"))
    assert not list(short_name_offences("| `peerd/swap/layer.py` |\n\n| `examples.py` | of another table |\n"))
