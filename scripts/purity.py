"""Shows that `crates/sim` is pure: it depends on no crate of this workspace, nor on the standard library's I/O.

Clippy refuses single items (crates/sim/clippy.toml); this script looks for whole modules.
"""

import re
import subprocess
import sys
from pathlib import Path

FORBIDDEN = re.compile(
    r"\bstd\s*::\s*(?:fs|net|thread|env|process|os|io)\b"
    r"|\b(?:Instant|SystemTime)\b"
    r"|\b(?:e?print(?:ln)?|dbg|thread_local|include_bytes|include_str)!"
)
GROUPED = re.compile(r"\bstd\s*::\s*\{[^;]*;")
GROUPED_MODULE = re.compile(r"[{,]\s*(?:fs|net|thread|env|process|os|io)\b")


def main() -> int:
    """Prints each offence; the exit code is 1 if there is one."""
    offences = foreign_dependencies() + [offence for path in sources() for offence in doors(path)]
    for offence in offences:
        print(f"error: {offence}", file=sys.stderr)
    if not offences:
        print("crates/sim is pure")
    return 1 if offences else 0


def sources() -> list[Path]:
    """The crate's own code; tests and benches are not restricted."""
    return sorted(Path("crates/sim/src").rglob("*.rs"))


def foreign_dependencies() -> list[str]:
    """Packages of this workspace that `uniference-sim` depends on."""
    tree = ["cargo", "tree", "--locked", "--package", "uniference-sim", "--edges", "normal,build", "--prefix", "none"]
    lines = subprocess.run(tree, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    names = sorted({line.split()[0] for line in lines if line})
    ours = [name for name in names if name.startswith("uniference-") and name != "uniference-sim"]
    return [f"uniference-sim depends on {name}" for name in ours]


def doors(path: Path) -> list[str]:
    """Uses of I/O in code, ignoring comments."""
    code = re.sub(r"//[^\n]*", "", path.read_text())
    found = list(FORBIDDEN.finditer(code))
    found += [group for group in GROUPED.finditer(code) if GROUPED_MODULE.search(group.group())]
    return [f"{path}:{code.count(chr(10), 0, use.start()) + 1}: {use.group().strip()}" for use in found]


if __name__ == "__main__":
    sys.exit(main())
