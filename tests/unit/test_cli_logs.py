"""``peerd logs collect``: event files from folders, local clusters, and hosts over ssh."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from peerd.cli import logs
from peerd.cli.app import run_command
from peerd.errors import ExitCode

HOUR = "dt=2026-11-27/hr=13"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a finished file, one that is being written, and what is no event file."""
    hour = tmp_path / "source" / HOUR
    hour.mkdir(parents=True)
    (hour / "events-1-1-1.ndjson.gz").write_bytes(b"whole")
    (hour / "events-1-1-2.ndjson.part").write_bytes(b"beg")
    (hour / "notes.txt").write_bytes(b"mine")
    (hour / "link.ndjson").symlink_to("/etc/passwd")
    return tmp_path / "source"


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh that runs the command here; the host "down" does not answer."""
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -- ]; do shift; done\n'
        '[ "$2" = down ] && { echo "connect to host down: Connection refused" >&2; exit 255; }\n'
        'shift 2; exec sh -c "$*"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(logs, "SSH", (str(program), "--"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("kind", ["folder", "host"])
def test_new_files_come_once_and_growing_ones_again(
    kind: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["logs", "collect", str(source) if kind == "folder" else f"web1:{source}", "--out", str(out)]
    assert run_command(words) == ExitCode.OK
    [folder] = out.iterdir()
    assert files(folder) == {
        f"{HOUR}/events-1-1-1.ndjson.gz": b"whole",
        f"{HOUR}/events-1-1-2.ndjson.part": b"beg",
    }
    assert "2 new files" in capsys.readouterr().err

    part = source / HOUR / "events-1-1-2.ndjson.part"
    part.write_bytes(b"begun")
    assert run_command(words) == ExitCode.OK
    assert "1 new file," in capsys.readouterr().err
    part.unlink()
    (source / HOUR / "events-1-1-2.ndjson.gz").write_bytes(b"packed")
    assert run_command(words) == ExitCode.OK
    assert files(folder) == {
        f"{HOUR}/events-1-1-1.ndjson.gz": b"whole",
        f"{HOUR}/events-1-1-2.ndjson.gz": b"packed",
    }


@pytest.mark.usefixtures("hosts")
def test_a_host_that_fails_does_not_stop_the_others(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run_command(["logs", "collect", "down:/x", f"web1:{source}", "--out", out]) == ExitCode.PARTIAL
    said = capsys.readouterr().err
    assert "down:/x: connect to host down: Connection refused" in said and "2 new files" in said
    assert run_command(["logs", "collect", "down:/x", "--out", out]) == ExitCode.UNAVAILABLE
    assert run_command(["logs", "collect", "web1:/nowhere/at all", "--out", out]) == ExitCode.UNAVAILABLE
    assert "No such file" in capsys.readouterr().err
    assert run_command(["logs", "collect", "nothing-of-this-name", "--out", out]) == ExitCode.UNAVAILABLE
    assert "there is no folder" in capsys.readouterr().err


def test_a_local_cluster_is_found_by_its_name(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    events = tmp_path / "state" / "peerd" / "clusters" / "mine" / "events"
    events.parent.mkdir(parents=True)
    source.rename(events)
    assert run_command(["logs", "collect", "mine", "--out", str(tmp_path / "out")]) == ExitCode.OK
    assert len(files(tmp_path / "out" / "mine")) == 2


def test_a_host_cannot_write_outside_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("../../evil.ndjson", "/tmp/evil.ndjson", "a/../../evil.ndjson", "good.ndjson"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("link.ndjson")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    monkeypatch.setattr(logs, "SSH", ("sh", "-c", f"cat {archive}"))
    assert run_command(["logs", "collect", "evil:/x", "--out", str(tmp_path / "out")]) == ExitCode.OK
    assert files(tmp_path / "out") == {"evil_x/good.ndjson": b"evil"}
    assert not list(tmp_path.glob("evil.ndjson"))
