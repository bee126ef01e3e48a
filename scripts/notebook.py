"""Executes a notebook of the examples, cell by cell, and compares its output with the stored output.

python scripts/notebook.py [--write] NOTEBOOK

Texts are compared, pictures are not: those differ between versions of matplotlib. With `--write` the executed notebook
replaces the stored one. Simulated times are equal on every machine, so the texts are deterministic.
"""

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def main() -> int:
    """Returns 1 if the output differs."""
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
    """The output of the cells, line by line."""
    lines = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                continue
            # Output of the progress bar is cleared at the end.
            text = output.get("text") or data.get("text/plain", "")
            lines += [f"[{number}] {line}" for line in text.splitlines() if "IPython.core.display.HTML" not in line]
    return lines


def tidy(notebook: Any) -> None:
    """Removes data that differs between executions."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        outputs = cell.get("outputs", [])
        outputs[:] = [output for output in outputs if "IPython.core.display.HTML" not in str(output.get("data", ""))]
    notebook.metadata.pop("language_info", None)


if __name__ == "__main__":
    sys.exit(main())
