"""``peerd query``: ask in SQL, or in the commands of the paper; one line, a file of them, or a prompt."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.files import read_text
from peerd.cli.options import Output, OutputOption, SocketOption, ask, duration_s
from peerd.cli.output import RowWriter, print_data, print_table, printable, stderr, stdout
from peerd.errors import ExitCode, PeerdError
from peerd.words import counted
from protocols.measurement import models
from protocols.measurement.front.measure import followed, shown, tell_gaps

if TYPE_CHECKING:
    from peerd.client import Client
    from protocols.measurement.querying.commands import QuerySession

SQL: Final = ("select", "explain", "watch")
HISTORY: Final = "~/.peerd_query_history"
HISTORY_LINES: Final = 1000
PROMPT: Final = "peerd> "
FILES_MAX: Final = 8
"""Files that execute each other."""
MISSING_SHOWN: Final = 5
SLEEP_S_MAX: Final = 86_400.0


def query(
    text: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="SQL or a command. Without it: a prompt, or lines of a pipe."),
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", metavar="FILE", help="Lines to execute first.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="WATCH: end after so many answers. 0: never.")] = 0,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask what the ring's nodes measure, with bounds. Exit code 3 when something is missing or was not met.

    \b
    peerd query "SELECT node, cpu FROM nodes WHERE role = 'web' AND cpu < 0.5 WITHIN 0.05 STALE 5s"
    peerd query "SELECT role, MEAN(cpu), COUNT(*) FROM nodes GROUP BY role"
    peerd query "SELECT node, cpu FROM nodes ORDER BY cpu DESC LIMIT 3"
    peerd query "EXPLAIN ANALYZE SELECT * FROM nodes WHERE rtt TO '10.0.0.7' < 100ms"
    peerd query "WATCH SELECT node FROM nodes WHERE cpu > 0.9 WITHIN 0.05"
    """
    from protocols.measurement.querying.commands import QuerySession

    runner = _Runner(socket, output, count, QuerySession())
    if file is not None:
        runner.execute(file)
    if text is not None:
        runner.line(text)
    elif file is None:
        runner.lines(_typed() if sys.stdin.isatty() else iter(sys.stdin))
    if runner.is_partial:
        raise typer.Exit(ExitCode.PARTIAL)


class _Runner:
    """Runs lines one after the other."""

    def __init__(self, socket: str | None, output: Output, count: int, session: QuerySession) -> None:
        self._socket, self._output, self._count, self._session = socket, output, count, session
        self._depth = 0
        self.is_partial = False

    def lines(self, lines: Iterator[str]) -> None:
        """Run all; at a prompt a mistake is shown, and the next line is read."""
        for line in lines:
            try:
                if not self.line(line):
                    return
            except (PeerdError, ValueError) as error:
                if not sys.stdin.isatty():
                    raise
                stderr().print(f"error: {error}")

    def execute(self, file: Path) -> None:
        """Run the lines of a file."""
        if self._depth == FILES_MAX:
            raise typer.BadParameter(f"{file}: more than {FILES_MAX} files execute each other", param_hint="execute")
        self._depth += 1
        for line in read_text(file).splitlines():
            if not self.line(line):
                break
        self._depth -= 1

    def line(self, line: str) -> bool:
        """Run one; false: it says that this was the last one."""
        line = line.strip()
        if not line or line.startswith(("#", "--")):
            return True
        first = line.split(None, 1)[0].lower()
        if first in SQL and not line[len(first) :].lstrip().startswith("("):
            self._ask(line)
            return True
        doing = self._session.line(line)
        if doing.statement is not None:
            self._ask(doing.statement.text)
        elif doing.word == "sleep":
            self._sleep(doing.argument)
        elif doing.word == "execute":
            self.execute(Path(doing.argument))
        return doing.word != "quit"

    def _sleep(self, argument: str) -> None:
        seconds = duration_s(argument if argument.endswith(("s", "m", "h")) else f"{argument}s", "sleep")
        if seconds > SLEEP_S_MAX:
            raise typer.BadParameter(f"{argument!r} is more than a day", param_hint="sleep")
        time.sleep(seconds)

    def _ask(self, text: str) -> None:
        if text.split(None, 1)[0].lower() == "watch":
            ask(self._socket, lambda client: self._watch(client, text), waiting="")
            return
        began = time.monotonic()
        answer: models.QueryView = ask(self._socket, lambda client: client.measurement.query(text), "asking the ring")
        self._show(answer, time.monotonic() - began)

    async def _watch(self, client: Client, text: str) -> None:
        rows = RowWriter(self._output)
        async for answer in followed(client.measurement.watch_query(text), models.QueryView, self._count):
            if self._output is Output.TABLE:
                stdout().print(time.strftime("%H:%M:%S"), "bold")
                self._show(answer, None)
            else:
                rows.write(answer)

    def _show(self, answer: models.QueryView, took_s: float | None) -> None:
        if not print_data(self._output, answer, printed_rows(answer)):
            for line in answer.explained:
                stdout().print(line)
            if answer.columns:
                _print_rows(answer)
                stdout().print(_verdict(answer, took_s))
        _tell_gaps(answer)
        self.is_partial |= bool(answer.missing or answer.unmet or answer.problems)


def _print_rows(answer: models.QueryView) -> None:
    is_unsure = any(row.certainty != "yes" for row in answer.rows)
    headings = [*answer.columns, *(["certain"] if is_unsure else [])]
    rows = []
    for row in answer.rows:
        certain = "yes" if row.certainty == "yes" else f"maybe ({row.confidence:.0%})"
        rows.append([*(_cell(value) for value in row.values), *([certain] if is_unsure else [])])
    measured = [
        name
        for at, name in enumerate(answer.columns)
        if any(isinstance(row.values[at], models.BoundedView) for row in answer.rows)
    ]
    print_table(stdout(), headings, rows, numbers=measured)


def _cell(value: models.BoundedView | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    stale = "~" if value.stale else ""
    if value.low == value.high:
        return f"{stale}{shown(value.value)}"
    return f"{stale}{shown(value.value)} [{shown(value.low)}, {shown(value.high)}]"


def printed_rows(answer: models.QueryView) -> Iterator[dict[str, Any]]:
    """Rows for JSONL and CSV, with the columns that Python programs get."""
    table = answer.table()
    for row in zip(*table.values(), strict=True):
        yield dict(zip(table, row, strict=True))


def _verdict(answer: models.QueryView, took_s: float | None) -> str:
    unsure = f", {answer.maybe} of them uncertain" if answer.maybe else ""
    took = "" if took_s is None else f", {1000 * took_s:.0f} ms"
    return f"{counted(len(answer.rows), 'row')}{unsure}; {counted(answer.messages, 'message')}{took}"


def _tell_gaps(answer: models.QueryView) -> None:
    for clause, why in answer.unmet.items():
        stderr().print(f"{clause} was not met: {printable(why)}")
    if len(answer.missing) > MISSING_SHOWN:
        stderr().print(f"{len(answer.missing)} values are missing (-o json), such as")
    tell_gaps(answer.missing[:MISSING_SHOWN], answer.problems)


def _typed() -> Iterator[str]:
    """Lines that a person types, with history and completion where the machine has readline."""
    with suppress(ImportError):
        _prepare_readline()
    while True:
        try:
            yield input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            stdout().print("")
            return


def _prepare_readline() -> None:
    import atexit
    import readline

    from protocols.measurement.querying.commands import COMMANDS
    from protocols.measurement.querying.statement import KEYWORDS

    history = Path(HISTORY).expanduser()
    with suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES)

    def save() -> None:
        with suppress(OSError):
            readline.write_history_file(history)

    def complete(text: str, state: int) -> str | None:
        found = [word for word in (*KEYWORDS, *COMMANDS) if word.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None

    atexit.register(save)
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
