"""Owns the command `uniference`, also as `python -m uniference`; its arguments and output are the extension's business."""

import sys


def main() -> int:
    """Runs the command line; returns the exit code."""
    from uniference import _native

    return _native.cli(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
