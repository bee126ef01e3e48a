"""Owns the command `uniference`, also as `python -m uniference`; the extension parses arguments and prints output."""

import signal
import sys

# Ctrl-C ends the command at once, without a traceback, until the run installs its own handler for it.
signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Runs the command line; returns the exit code."""
    from uniference import _native

    return _native.cli(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
