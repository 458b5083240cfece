"""Commands of identity, as far as they need no daemon: whom `deny` means, and which file `token create` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from peerd.cli.deny import UnclearSubject, chosen
from peerd.cli.main import exit_code, main
from peerd.errors import ExitCode


def test_the_first_digits_name_one_subject_or_all_candidates() -> None:
    one, two = "ab12" + "0" * 28, "ab34" + "0" * 28
    subjects = {f"node:{one}": "192.0.2.1:7420", f"node:{two}": "192.0.2.2:7420", f"serial:{'c' * 40}": "copied key"}
    assert chosen("ab12", subjects) == f"node:{one}"
    assert chosen("cccc", subjects) == f"serial:{'c' * 40}"
    with pytest.raises(UnclearSubject) as caught:
        chosen("ab", subjects)
    assert str(caught.value).splitlines() == [
        "ab begins 2 ids: give more digits",
        f"  {one}  192.0.2.1:7420",
        f"  {two}  192.0.2.2:7420",
    ]
    assert exit_code(caught.value) == ExitCode.USAGE
    with pytest.raises(UnclearSubject, match="give the whole id"):
        chosen("dddd", subjects)


def test_a_few_digits_too_few_ask_no_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("abc", "xyzw", "0" * 33):
        assert main(["deny", text, "--socket", "nowhere.sock"]) == ExitCode.USAGE
    assert "at least 4 digits" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    "command", [["token", "create"], ["access", "create", "me", "--scope", "*"]], ids=lambda words: words[0]
)
def test_a_token_file_that_is_there_is_not_overwritten_and_no_token_is_made(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "token"
    kept.write_text("precious")
    asked = [*command, "--out", str(kept), "--socket", str(tmp_path / "nowhere.sock")]
    assert main(asked) == ExitCode.CONFIG
    assert f"{kept}: is there already: --force overwrites it" in capsys.readouterr().err
    assert main([*asked, "--force"]) == ExitCode.UNAVAILABLE, "only now the daemon is asked"
    assert kept.read_text() == "precious"
