"""Owns the command `uniference`, also as `python -m uniference`; its arguments and output are the extension's business."""

import signal
import sys

# Ctrl-C ends the command at once, without a traceback, until the run takes it over.
signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Runs the command line; returns the exit code."""
    from uniference import _native

    return _native.cli(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
