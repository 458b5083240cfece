"""The process that starts a local cluster: it imports everything once, forks one daemon a node, and minds them.

Run as ``python -m peerd.cluster.fork_server DIR ...`` by `peerd.cluster.local.LocalCluster`, in a session of its own.
Its standard input is a lifeline: at its end (the starter died, or was interrupted) the server ends all daemons and
removes the cluster's files. The byte `DETACH` cuts the line: from then on the cluster lives until SIGTERM. Should the
server itself be killed, the kernel sends SIGTERM to each daemon.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol, cast

from peerd.cluster.layout import ClusterRecord, Layout, NodeRecord
from peerd.cluster.processes import ProcessRef, die_with_parent, name_process, process_ref, send_signal
from peerd.errors import Bug, ConfigError, ExitCode

DETACH: Final = b"D"
GRACE_S: Final = 7.0
"""Daemons may take this long to stop. A local one leaves the ring within its node.shutdown_timeout of 5 s."""
NODE_MODULE: Final = "peerd.cluster.node_process"
_WATCHED: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class NodeModule(Protocol):
    """The module that is a node: loaded once, run in every child."""

    def prepare(self) -> None:
        """Import all that `run` will need. Starts no thread and no event loop."""

    def run(self, config_file: Path) -> int:
        """Be the node until SIGTERM; returns the exit code."""


class ForkServer:
    """Forks the nodes, collects their exit codes, and keeps the record up to date."""

    def __init__(self, layout: Layout, record: ClusterRecord, node_module: NodeModule) -> None:
        self._layout = layout
        self._record = record
        self._node_module = node_module
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._children: dict[int, int] = {}
        """The index of the node that each process id belongs to."""
        self._is_stopping = False

    def run(self, reserved: Sequence[socket.socket]) -> None:
        """Start all nodes; return when none is left. Files are removed when the lifeline ended.

        ``reserved``: bound, not listening, one a node: while the server holds them nobody else gets these ports.
        """
        for number in _WATCHED:
            signal.signal(number, self._signalled)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._fork_all(reserved)
        lifeline_ended = self._mind_children()
        self._end_children()
        if lifeline_ended:
            self._layout.remove(keep=self._record.is_kept)
            self._layout.remove_folder()

    def _signalled(self, number: int, _frame: object) -> None:
        self._is_stopping = self._is_stopping or number != signal.SIGCHLD

    # Starting

    def _fork_all(self, reserved: Sequence[socket.socket]) -> None:
        if threading.active_count() != 1:
            raise Bug(f"forking with threads: {', '.join(thread.name for thread in threading.enumerate())}")
        gc.collect()
        gc.freeze()  # after that the garbage collector does not write to these pages, so the children share them
        gc.enable()
        server_pid = os.getpid()
        nodes = []
        for node in self._record.nodes:
            # A signal that came before the child has its own handlers would run the server's: it is blocked until then.
            signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
            pid = os.fork()
            if pid == 0:
                self._be_node(node, reserved, server_pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            self._children[pid] = node.index
            nodes.append(node.model_copy(update={"process": process_ref(pid)}))
        self._save(server=process_ref(server_pid), nodes=tuple(nodes))

    def _be_node(self, node: NodeRecord, reserved: Sequence[socket.socket], server_pid: int) -> NoReturn:
        """Run the node in the child. It never returns into the server's code, whatever happens."""
        status: int = ExitCode.FAILURE
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_WATCHED, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            die_with_parent(server_pid, signal.SIGTERM)
            _redirect(self._layout.log_file(node.index))
            for sock in reserved:
                sock.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            name_process(f"peerd-{node.index}")
            status = self._node_module.run(self._layout.config_file(node.index))
        except ConfigError as error:
            print(f"peerd: {error}", file=sys.stderr)
            status = ExitCode.CONFIG
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else ExitCode.FAILURE
        except BaseException:  # the process ends here; its log says why
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    # Watching the children

    def _mind_children(self) -> bool:
        """Collect exit codes until told to stop or no child is left. Returns whether the lifeline ended."""
        control = sys.stdin.fileno()
        watched = [self._wake_reader, control]
        while self._children and not self._is_stopping:
            readable, _, _ = select.select(watched, [], [])
            self._drain_wakeups()
            self._reap()
            if control in readable:
                if os.read(control, 1) != DETACH:
                    return True
                watched.remove(control)
        return False

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_reader, 512):
                pass

    def _reap(self) -> None:
        ended: dict[int, int] = {}
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            index = self._children.pop(pid, None)
            if index is not None:
                ended[index] = os.waitstatus_to_exitcode(status)
        if ended:
            self._save(nodes=tuple(_with_exit(node, ended.get(node.index)) for node in self._record.nodes))

    def _end_children(self) -> None:
        """Stop the children: SIGTERM, a bounded wait, then SIGKILL."""
        self._signal_children(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while self._children and (remaining_s := deadline - time.monotonic()) > 0:
            select.select([self._wake_reader], [], [], remaining_s)
            self._drain_wakeups()
            self._reap()
        self._signal_children(signal.SIGKILL)
        while self._children:
            select.select([self._wake_reader], [], [], 1.0)
            self._drain_wakeups()
            self._reap()

    def _signal_children(self, number: signal.Signals) -> None:
        for node in self._record.nodes:
            if node.index in self._children.values():
                send_signal(node.process, number)

    def _save(self, *, nodes: tuple[NodeRecord, ...], server: ProcessRef | None = None) -> None:
        update: dict[str, object] = {"nodes": nodes}
        if server is not None:
            update["server"] = server
        self._record = self._record.model_copy(update=update)
        self._layout.write(self._record)


def _with_exit(node: NodeRecord, status: int | None) -> NodeRecord:
    return node if status is None else node.model_copy(update={"exit_status": status})


def _redirect(log_file: Path) -> None:
    """Connect standard input to /dev/null, output and errors to the node's log."""
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the module; see `peerd.cluster.local` for what it is given."""
    parser = argparse.ArgumentParser(prog="peerd.cluster.fork_server")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--reserved", required=True, help="descriptors of sockets bound to the nodes' ports")
    parser.add_argument("--node-module", default=NODE_MODULE)
    options = parser.parse_args(arguments)
    gc.disable()  # until all is imported: see `ForkServer`
    reserved = [socket.socket(fileno=int(text)) for text in options.reserved.split(",")]
    layout = Layout(options.directory)
    record = layout.read()
    if record is None:
        raise Bug(f"no record in {options.directory}")
    node_module = cast(NodeModule, importlib.import_module(options.node_module))
    node_module.prepare()
    name_process("peerd-cluster")
    ForkServer(layout, record, node_module).run(reserved)


if __name__ == "__main__":
    main()
