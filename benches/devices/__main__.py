"""Owns the run: sections one after the other, and their place on docs/explanation/accuracy.md.

Each section is a module with `section(out, few)`: `out` is a folder for captured runs, `few` selects a handful of rows.
A report, never a gate.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from . import neusight, processor, workloads
from .section import ROOT, Section, report

PAGE = ROOT / "docs" / "explanation" / "accuracy.md"

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
    if words.write and words.few:
        parser.error("--write needs all rows")
    for name in words.sections or SECTIONS:
        began = time.monotonic()
        text = "\n\n".join(report(section) for section in SECTIONS[name](words.out.resolve() / name, words.few))
        print(f"{text}\n\n{name}: {time.monotonic() - began:.0f} s", flush=True)
        if words.write:
            write(name, text)


def write(name: str, text: str) -> None:
    """Replaces the section between the markers of the page; other sections stay as they are."""
    begin, end = f"<!-- devices: written by `make accuracy-devices`: {name} -->", f"<!-- /devices: {name} -->"
    before, found, rest = PAGE.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"{PAGE} has no markers {begin} and {end}")
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


if __name__ == "__main__":
    main()
