"""Owns one rank of a real run, from the process's start to its end: `python -m uniference.real [-m] SCRIPT [ARGS...]`.

torchrun or the testbed starts it and sets its environment; UNIFERENCE_RECORD names the folder for the rank's file.
"""

import contextlib
import os
import platform
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch

from uniference.patches import names, registry, versions
from uniference.program import execution
from uniference.real.hooks import Hooks
from uniference.real.meeting import Meeting
from uniference.real.recording import Recording, now

FOLDER = "UNIFERENCE_RECORD"


def main(words: list[str]) -> NoReturn:
    """Runs the program under the recorder; `words` are its path, or -m and a module's name, and its arguments."""
    module = words[0] == "-m"
    argv = words[1:] if module else words
    _prepare()
    meeting, recording = Meeting(), Recording()
    _compare_clocks(meeting, "before")
    Hooks(recording).install()
    start = meeting.start_together()
    code = execution.run(argv, module)
    finish = now()
    execution.tidy_up()
    if code == 0:
        # A failed rank does not compare clocks, because the other ranks do not join the comparison.
        _compare_clocks(meeting, "after")
    path = Path(os.environ[FOLDER]) / f"rank-{meeting.rank}.jsonl"
    recording.write(path, _head(meeting, argv, start), {"finish": finish, "ok": code == 0, "clocks": meeting.readings})
    if code == 0:
        meeting.leave()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Hooks in Python must not be called during torch's finalization.
    os._exit(code)


def _prepare() -> None:
    """Imports the modules that simulated ranks import before their time begins. Ends the process if this torch lacks a
    name that the recorder needs."""
    versions.preload()
    try:
        registry.check_all(names.ALL)
    except registry.MovedError as error:
        message, hint = error.args
        print(f"error: {message}\nhint: {hint}", file=sys.stderr, flush=True)
        os._exit(2)


def _compare_clocks(meeting: Meeting, name: str) -> None:
    """Compares the clocks. Ends the process if that fails, because the ranks' times could not be related."""
    try:
        meeting.compare_clocks(name)
    except (ConnectionError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _head(meeting: Meeting, argv: list[str], start: int) -> dict[str, Any]:
    return {
        "rank": meeting.rank,
        "world_size": meeting.world_size,
        "host": meeting.host,
        "device": f"{platform.node()}.{os.environ.get('LOCAL_RANK', meeting.rank)}",
        # The words are for people: a word need not be UTF-8, but JSON must be.
        "argv": [os.fsencode(word).decode(errors="replace") for word in argv],
        "torch": str(torch.__version__),
        "start": start,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
