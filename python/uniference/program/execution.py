"""Owns the execution of the user's program in this process: as `__main__`, with its own arguments, and without
Uniference's frames in tracebacks.

Callers decide whether the process is a simulated rank or one on a real cluster.
"""

import atexit
import contextlib
import gc
import io
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Sequence
from types import ModuleType, TracebackType

from uniference.program import hints

# Common beginning of the names of this package's files.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def run(argv: Sequence[str], module: bool) -> int:
    """Runs the program; returns the exit code that a Python process would have. `argv[0]` is the script, or with
    `module` the module's name."""
    sys.argv[:] = argv
    try:
        try:
            execute(argv[0], module)
        finally:
            # The program's end waits for its non-daemon threads.
            threading._shutdown()  # type: ignore[attr-defined]
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        with contextlib.suppress(OSError, ValueError):  # the program may have closed it
            print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # a program may raise anything
        _report(error)
        return 1
    return 0


def tidy_up() -> None:
    """Runs the exit functions and destructors, and flushes files. As in the interpreter, an exception in one of them
    does not change the program's exit code."""
    try:
        atexit._run_exitfuncs()
    except BaseException as error:  # an exit function may raise anything
        _report(error)
    # The collector calls destructors before it clears any object, so the remaining objects of `__main__` can still use
    # its globals.
    sys.modules.pop("__main__", None)
    gc.collect()
    # The remaining objects belong to modules. The interpreter would finalize them too, but torch's need a long time for
    # that.
    for left in gc.get_objects():
        # The check is by type, because some torch objects warn if they are asked for their class.
        if issubclass(type(left), (io.BufferedWriter, io.TextIOWrapper)) and not left.closed:
            with contextlib.suppress(Exception):  # the other end may have gone
                left.flush()


def execute(script: str, module: bool) -> None:
    """Runs a script or module as `__main__`; its exceptions propagate to the caller."""
    if module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    elif os.path.isfile(script) and not script.endswith((".pyc", ".zip", ".pyz")):
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        _execute_file(script)
    else:
        runpy.run_path(script, run_name="__main__")


def _execute_file(script: str) -> None:
    """Runs a file as `python SCRIPT` does. Unlike with runpy, `__main__` stays in place for threads and exit
    functions."""
    main = ModuleType("__main__")
    path = os.path.abspath(script)
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _report(error: BaseException) -> None:
    """Prints the traceback as the interpreter would, without this package's frames."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and not any(link is known for known in seen):
        link.__traceback__ = _user_frames(link.__traceback__)
        seen.append(link)
        link = link.__cause__ or link.__context__
    _show(error)
    if hint := next(filter(None, map(hints.hint, seen)), None):
        with contextlib.suppress(OSError, ValueError):  # the program may have closed it
            print(f"hint: {hint}", file=sys.stderr)


def _show(error: BaseException) -> None:
    if sys.excepthook is not sys.__excepthook__:
        try:
            sys.excepthook(type(error), error, error.__traceback__)
            return
        except BaseException as another:  # the program's own hook
            another.__traceback__ = _user_frames(another.__traceback__)
            traceback.print_exception(another)
    traceback.print_exception(error)


def is_ours(filename: str) -> bool:
    """Whether the file belongs to this package, or to runpy."""
    return filename.startswith(PACKAGE) or filename in (runpy.__file__, "<frozen runpy>")


def _user_frames(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without frames of this package. Not recursive, because a program that exceeded the recursion limit
    has a thousand frames."""
    kept: list[TracebackType] = []
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        if not is_ours(filename):
            kept.append(tb)
        tb = tb.tb_next
    shown: TracebackType | None = None
    for frame in reversed(kept):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown
