"""Commands on a pseudo-terminal."""

from __future__ import annotations

import codecs
import os
import pty
import select
import signal
import sys
import time
from pathlib import Path


class Terminal:
    """A command on a pseudo-terminal, in its own process."""

    def __init__(self, *words: str, kind: str = "dumb") -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=kind, NO_COLOR="1", COLUMNS="120")
            os.execv(sys.executable, [sys.executable, "-m", "standfast.cli.main", *words])
        self._shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end inside a character

    def expect(self, text: str) -> str:
        """Read up to *text*, and return everything including it."""
        while text not in self._shown:
            more = self._read()
            assert more, f"no {text!r} in {self._shown!r}"
            self._shown += more
        before, _, self._shown = self._shown.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def press_ctrl_c(self) -> None:
        self._let_it_wait()
        self.type("\x03")

    def _let_it_wait(self) -> None:
        """Wait until its main thread sleeps: the readline module misses a signal that arrives just before."""
        stat = Path(f"/proc/{self.pid}/stat")
        asleep = 0
        deadline = time.monotonic() + 20
        while asleep < 50 and time.monotonic() < deadline:
            asleep = asleep + 1 if stat.read_text().rpartition(")")[2].split()[0] == "S" else 0
            os.sched_yield()

    def signal(self, number: signal.Signals) -> None:
        self._let_it_wait()
        os.kill(self.pid, number)

    def exit_status(self) -> int:
        """Wait for the end and return the exit status; the remaining output is in `rest`."""
        while more := self._read():
            self._shown += more
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        return status

    @property
    def rest(self) -> str:
        return self._shown

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def _read(self) -> str:
        ready, _, _ = select.select([self._fd], [], [], 20)
        assert ready, f"nothing more came after {self._shown!r}"
        try:
            while data := os.read(self._fd, 65536):
                if text := self._decoder.decode(data):
                    return text.replace("\r\n", "\n")
            return ""
        except OSError:  # the other end is closed
            return ""
