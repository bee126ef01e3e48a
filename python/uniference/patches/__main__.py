"""Owns the list of names as `uniference doctor` shows it: `python -m uniference.patches`.

Prints one JSON object per line: `{"name", "part", "verb", "why", "parameters", "problem"}`; `problem` is null if the
name is as expected.
"""

import importlib.util
import json
import sys

from uniference.patches import names, versions


def main() -> int:
    """Prints the list, with torch loaded as in a run."""
    versions.preload()
    for name in names.ALL:
        # Some builds of torch come without Triton.
        if importlib.util.find_spec(name.module.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name.module)
            problem = name.problem()
        except ModuleNotFoundError:
            problem = "is in a module that is not there"
        row = {"name": str(name), "part": name.part.value, "verb": name.verb, "why": name.why}
        print(json.dumps(row | {"parameters": name.parameters, "problem": problem}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
