"""Owns the child process of a command that Python runs: progress display during the run, and the end of all processes
after an interrupt."""

import contextlib
import html
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

PERIOD_S = 0.25
"""Seconds between two reads of the progress file."""
PATIENCE_S = 10.0
"""Seconds after which an interrupted command that has not ended is killed."""


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class Display:
    """Shows the progress of a simulation: in a notebook below its cell, otherwise as a line on standard error."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._width = 0

    def show(self, head: str, ranks: Sequence[str] = ()) -> None:
        """Replaces the previous text."""
        if not is_notebook():
            sys.stderr.write(f"\r{head:<{self._width}}")
            sys.stderr.flush()
            self._width = len(head)
            return
        from IPython.display import HTML, display

        text = HTML("<pre>" + html.escape("\n".join([head, *(f"  {rank}" for rank in ranks)])) + "</pre>")
        if self._handle is None:
            self._handle = display(text, display_id=True)
        else:
            self._handle.update(text)

    def clear(self) -> None:
        """Removes the text."""
        if self._handle is not None:
            from IPython.display import HTML

            self._handle.update(HTML(""))
        elif self._width:
            sys.stderr.write(f"\r{'':<{self._width}}\r")
            sys.stderr.flush()


def run(
    command: Sequence[str], stdout: IO[str], stderr: IO[str], progress: bool = False, stdin: Path | None = None
) -> int:
    """Runs a command to its end, and returns its exit code. KeyboardInterrupt ends the command first. Its standard
    input is the file `stdin`, or empty.

    With `progress` the command must know `--progress-to`, which is inserted behind its second word, the subcommand's
    name.
    """
    with contextlib.ExitStack() as stack:
        words, told, display = list(command), None, Display()
        if progress:
            path = Path(stack.enter_context(TemporaryDirectory())) / "progress"
            path.touch()
            told = stack.enter_context(open(path, "rb"))
            at = words.index("uniference") + 2
            words[at:at] = ["--progress-to", str(path)]
            stack.callback(display.clear)
        given = stack.enter_context(open(stdin or os.devnull))
        process = subprocess.Popen(words, stdin=given, stdout=stdout, stderr=stderr, text=True)
        try:
            while True:
                try:
                    return process.wait(PERIOD_S if told else None)
                except subprocess.TimeoutExpired:
                    assert told is not None
                    _show_last(told, display)
        except BaseException:
            _end(process)
            raise


def _show_last(told: IO[bytes], display: Display) -> None:
    """Shows the last complete line that was written since the previous read."""
    begin = told.tell()
    complete, newline, _ = told.read().rpartition(b"\n")
    # An incomplete line is read again later.
    told.seek(begin + len(complete + newline))
    if complete:
        standing = json.loads(complete.rpartition(b"\n")[2])
        display.show(standing["head"], [rank["text"] for rank in standing["ranks"]])


def _end(process: "subprocess.Popen[str]") -> None:
    """Ends the command as Ctrl-C does on a terminal, where the command may have received the signal itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
        return
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_S)
        return
    process.kill()
    process.wait()
