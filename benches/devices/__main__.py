"""Owns the run: sections one after the other, and their place on docs/explanation/accuracy.md.

Each section is a module with `section(out, few)`: `out` is a folder for what it captures, `few` asks for a handful of rows. A
report, never a gate.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from . import neusight, processor, workloads
from .section import ROOT, Section, report

PAGE = ROOT / "docs" / "explanation" / "accuracy.md"
BEGIN, END = "<!-- devices: written by `make accuracy-devices` -->", "<!-- /devices -->"

SECTIONS: dict[str, Callable[[Path, bool], list[Section]]] = {
    "processor": processor.sections,
    "neusight": neusight.sections,
    "workloads": workloads.sections,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="devices", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="which ones [default: all]")
    parser.add_argument("--few", action="store_true", help="a handful of rows of each")
    parser.add_argument("--write", action="store_true", help=f"put the report on {PAGE.relative_to(ROOT)}")
    parser.add_argument("--out", type=Path, default=ROOT / "uniference-out" / "accuracy-devices", help="captured runs")
    words = parser.parse_args()
    if words.write and (words.sections or words.few):
        parser.error("--write needs all rows of all sections")
    parts = []
    for name in words.sections or SECTIONS:
        began = time.monotonic()
        found = SECTIONS[name](words.out.resolve() / name, words.few)
        parts += [report(section) for section in found]
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    print("\n\n".join(parts))
    if words.write:
        write("\n\n".join(parts))


def write(text: str) -> None:
    """Between the markers of the page."""
    before, found, rest = PAGE.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise SystemExit(f"{PAGE} has no markers {BEGIN} and {END}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
