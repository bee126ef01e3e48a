"""Carries out a notebook of the examples, cell by cell, and compares what it prints with what is kept in it.

python scripts/notebook.py [--write] NOTEBOOK

Texts are compared, pictures are not: those differ with the version of matplotlib. With `--write` the notebook is replaced by what has come
of it. Simulated times are equal on every machine, so nothing in the texts is left to chance.
"""

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def main() -> int:
    """Returns 1 where something else is printed now."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true", help="replace the notebook")
    arguments = parser.parse_args()
    kept = nbformat.read(arguments.notebook, as_version=4)
    done = nbformat.read(arguments.notebook, as_version=4)
    NotebookClient(done, timeout=600, resources={"metadata": {"path": str(arguments.notebook.parent)}}).execute()
    if arguments.write:
        tidy(done)
        nbformat.write(done, arguments.notebook)
        return 0
    difference = list(difflib.unified_diff(texts(kept), texts(done), "kept", "now", lineterm=""))
    print("\n".join(difference))
    return 1 if difference else 0


def texts(notebook: Any) -> list[str]:
    """What its cells have printed, line by line."""
    lines = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                continue
            # What progress has shown is gone at the end.
            text = output.get("text") or data.get("text/plain", "")
            lines += [f"[{number}] {line}" for line in text.splitlines() if "IPython.core.display.HTML" not in line]
    return lines


def tidy(notebook: Any) -> None:
    """Leaves out what differs each time it is carried out."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        outputs = cell.get("outputs", [])
        outputs[:] = [output for output in outputs if "IPython.core.display.HTML" not in str(output.get("data", ""))]
    notebook.metadata.pop("language_info", None)


if __name__ == "__main__":
    sys.exit(main())
