"""Child processes that stop with their parent, however it ends.

Each server leads a session of its own, so a Ctrl-C in the terminal reaches only us and we stop it
in order. When we are killed outright there is nobody left to do that: on Linux the kernel then
kills the child (`PR_SET_PDEATHSIG`). Other systems have no such call: there a SIGKILL of the parent
leaves the servers running, and they must be ended by hand.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path

KILL_SECONDS = 10.0
# Servers whose parent was killed a moment ago are being killed too; they are given this long.
REMAINS_SECONDS = 10.0
POLL_SECONDS = 0.02
LOG_TAIL_BYTES = 4_000
# Below the range from which Linux and macOS take the local ports of outgoing connections: a server
# that is restarted on its port must not find a client's connection there.
PORT_FIRST, PORT_LAST = 15_000, 31_999
PORT_TRIES_MAX = 100

# Runs between fork and exec in a fresh interpreter, not in `preexec_fn`: that would run Python code
# in a fork of a process with threads, which can deadlock. Changing the user clears the death
# signal, so that comes first.
_LAUNCHER = """
import ctypes, os, sys
parent, user, group, program, *arguments = sys.argv[1:]
if user:
    os.setgroups([])
    os.setgid(int(group))
    os.setuid(int(user))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(parent):
    sys.exit("the parent ended before its child began")
os.execv(program, [program, *arguments])
"""

# The kernel sends the death signal when the *thread* that started the child ends, so one thread
# that lasts as long as the process starts them all.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger-embedded")


class EmbeddedError(Exception):
    """A server could not be fetched, started or stopped; the message says what to do."""


class Child:
    """One running server and its log file."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        directory: Path,
        claim: FileIO | None = None,
        user: pwd.struct_passwd | None = None,
    ) -> None:
        """`claim`: the file from `claimed`, which the process and its children keep open."""
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        words = [str(word) for word in command]
        launcher = [
            *(sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())),
            *((str(user.pw_uid), str(user.pw_gid)) if user else ("", "")),
            *words,
        ]
        with log.open("ab") as output:
            starting = _starter.submit(
                subprocess.Popen[bytes],
                launcher,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                pass_fds=() if claim is None else (claim.fileno(),),
                start_new_session=True,
            )
            try:
                self._process = starting.result()
            except BaseException:
                # Interrupted while waiting: nobody else will ever know of the process.
                starting.add_done_callback(_kill_started)
                raise
        if claim is not None:
            claim.truncate(0)
            claim.write(str(self.pid).encode())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """With which it has ended, negative for a signal; None: it is alive."""
        return self._process.poll()

    @property
    def failed(self) -> bool:
        """It has ended, and not well."""
        return self._process.poll() not in (None, 0)

    @property
    def output(self) -> str:
        """What this process, not an earlier one with the same log file, has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def wait_until(self, ready: Callable[[Child], bool], *, name: str, seconds: float) -> None:
        """Returns when `ready`.

        Raises `EmbeddedError` with the end of the log if the process ends first or the time is up.
        """
        deadline = time.monotonic() + seconds
        while not ready(self):
            if self._ended_within(POLL_SECONDS):
                raise EmbeddedError(
                    f"{name} ended with status {self._process.returncode} before it was ready"
                    f"{self._tail()}"
                )
            if time.monotonic() > deadline:
                raise EmbeddedError(f"{name} was not ready after {seconds:g} s{self._tail()}")

    def wait(self, *, name: str, seconds: float) -> None:
        """Returns at the end of the process. Raises `EmbeddedError` on failure or if time is up."""
        if not self._ended_within(seconds):
            raise EmbeddedError(f"{name} was not done after {seconds:g} s{self._tail()}")
        if self._process.returncode:
            raise EmbeddedError(f"{name} failed{self._tail()}")

    def send(self, number: signal.Signals) -> None:
        """Does nothing to a process that has ended."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Returns once every thread stands still (elsewhere than on Linux: soon after)."""
        self.send(signal.SIGSTOP)
        if sys.platform == "linux" and self.alive:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def stop(self, number: signal.Signals, *, seconds: float) -> None:
        """Asks with the signal; after `seconds` kills. A paused process is resumed to hear it."""
        self.send(number)
        self.send(signal.SIGCONT)
        if not self._ended_within(seconds):
            self.kill()

    def kill(self) -> None:
        """Kills the process and whatever else is in its process group, and waits for its end."""
        if self.alive:
            os.killpg(self.pid, signal.SIGKILL)
        if not self._ended_within(KILL_SECONDS):
            raise EmbeddedError(f"process {self.pid} outlived SIGKILL by {KILL_SECONDS:g} s")

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _tail(self) -> str:
        return f"; the end of {self.log}:\n{self.output[-LOG_TAIL_BYTES:].strip()}"


def run(
    command: Sequence[str | Path],
    *,
    name: str,
    log: Path,
    directory: Path,
    seconds: float,
    claim: FileIO | None = None,
    user: pwd.struct_passwd | None = None,
) -> None:
    """Runs a command to its end. Raises `EmbeddedError` unless it succeeds in time."""
    child = Child(command, log=log, directory=directory, claim=claim, user=user)
    try:
        child.wait(name=name, seconds=seconds)
    finally:
        child.kill()


@contextmanager
def claimed(directory: Path) -> Iterator[FileIO]:
    """Keeps other servers out of the directory for as long as any process has the file open.

    A server inherits it, so what remains of one whose parent was killed is waited for; raises
    `EmbeddedError` if it does not go.
    """
    place = directory / "claim"
    with place.open("ab", buffering=0) as claim:
        deadline = time.monotonic() + REMAINS_SECONDS
        while not locked(claim):
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"a server still works in {directory}, process {place.read_text()}: end it"
                )
            time.sleep(POLL_SECONDS)
        yield claim


def locked(file: FileIO, how: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock could be had at once. It lasts until no process has the file open."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_whole(place: Path, text: str, *, mode: int = 0o644) -> None:
    """Whoever reads the file finds the old text or the new, never half of it."""
    beside = place.with_name(f"{place.name}.fresh")
    beside.unlink(missing_ok=True)
    beside.touch(mode=mode)
    beside.write_text(text)
    beside.rename(place)


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nothing listens on now."""
    ports: list[int] = []
    with ExitStack() as probes:
        for _ in range(PORT_TRIES_MAX):
            if len(ports) == count:
                return ports
            port = PORT_FIRST + secrets.randbelow(PORT_LAST - PORT_FIRST + 1)
            probe = probes.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    raise EmbeddedError(f"no free port in {PORT_TRIES_MAX} tries from {PORT_FIRST} to {PORT_LAST}")


def _kill_started(starting: Future[subprocess.Popen[bytes]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()
