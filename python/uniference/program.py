"""Owns how the user's program is executed in this process: as `__main__`, with its own arguments, and without our frames in tracebacks.

Where it runs, in a simulated rank or on a real cluster, is its callers' business.
"""

import atexit
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Sequence
from types import ModuleType, TracebackType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run(argv: Sequence[str], module: bool) -> int:
    """Returns the exit code that a Python process would have. `argv[0]` is the script, or with `module` the module's name."""
    sys.argv[:] = argv
    try:
        try:
            execute(argv[0], module)
        finally:
            # Threads that are not daemons are part of the program.
            threading._shutdown()  # type: ignore[attr-defined]
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # a program may raise anything
        _report(error)
        return 1
    return 0


def tidy_up() -> None:
    """Runs the exit functions. As in the interpreter, one that raises does not change how the program has ended."""
    try:
        atexit._run_exitfuncs()
    except BaseException as error:  # an exit function may raise anything
        _report(error)


def execute(script: str, module: bool) -> None:
    """Runs a script or module as `__main__`; what it raises is the caller's."""
    if module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    elif os.path.isfile(script) and not script.endswith((".pyc", ".zip", ".pyz")):
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        _execute_file(script)
    else:
        runpy.run_path(script, run_name="__main__")


def _execute_file(script: str) -> None:
    """As `python SCRIPT` does. Unlike with runpy, `__main__` stays in place for threads and exit functions."""
    main = ModuleType("__main__")
    path = os.path.abspath(script)
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _report(error: BaseException) -> None:
    """Prints the traceback as the interpreter would, without this package's frames."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = _user_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(error)
    else:
        sys.excepthook(type(error), error, error.__traceback__)


def _user_frames(tb: TracebackType | None) -> TracebackType | None:
    if tb is None:
        return None
    rest = _user_frames(tb.tb_next)
    filename = tb.tb_frame.f_code.co_filename
    if filename.startswith(_PACKAGE) or filename in (runpy.__file__, "<frozen runpy>"):
        return rest
    return TracebackType(rest, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
