"""Checks the pure crates: they depend on no other crate of the workspace than listed below, and use no module of the
standard library that accesses the outside.

Clippy refuses single items (clippy.toml of these crates); this script searches for whole modules.
"""

import re
import subprocess
import sys
from pathlib import Path

# The pure crates, each with the crates of the workspace that it may depend on, directly or not.
PURE = {
    "sim": set(),
    "lowering": {"sim", "abi", "protocol", "formats", "costs"},
}

FORBIDDEN = re.compile(
    r"\bstd\s*::\s*(?:fs|net|thread|env|process|os|io)\b"
    r"|\b(?:Instant|SystemTime)\b"
    r"|\b(?:e?print(?:ln)?|dbg|thread_local|include_bytes|include_str)!"
)
GROUPED = re.compile(r"\bstd\s*::\s*\{[^;]*;")
GROUPED_MODULE = re.compile(r"[{,]\s*(?:fs|net|thread|env|process|os|io)\b")


def main() -> int:
    """Prints each offence; the exit code is 1 if there is one."""
    offences = [offence for crate, below in PURE.items() for offence in foreign_dependencies(crate, below)]
    offences += [offence for crate in PURE for path in sources(crate) for offence in doors(path)]
    for offence in offences:
        print(f"error: {offence}", file=sys.stderr)
    if not offences:
        print(f"pure: {', '.join(f'crates/{crate}' for crate in PURE)}")
    return 1 if offences else 0


def sources(crate: str) -> list[Path]:
    """Source files of the crate; tests and benches are exempt."""
    files = Path(f"crates/{crate}/src").rglob("*.rs")
    return sorted(path for path in files if "tests" not in path.with_suffix("").parts)


def foreign_dependencies(crate: str, below: set[str]) -> list[str]:
    """Packages of this workspace that the crate depends on, except those `below` it."""
    package = f"uniference-{crate}"
    tree = ["cargo", "tree", "--locked", "--package", package, "--edges", "normal,build", "--prefix", "none"]
    lines = subprocess.run(tree, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    names = sorted({line.split()[0] for line in lines if line})
    allowed = {package, *(f"uniference-{name}" for name in below)}
    return [f"{package} depends on {name}" for name in names if name.startswith("uniference-") and name not in allowed]


def doors(path: Path) -> list[str]:
    """Uses, in code and not in comments, of modules that access the outside."""
    code = re.sub(r"//[^\n]*", "", path.read_text())
    found = list(FORBIDDEN.finditer(code))
    found += [group for group in GROUPED.finditer(code) if GROUPED_MODULE.search(group.group())]
    return [f"{path}:{code.count(chr(10), 0, use.start()) + 1}: {use.group().strip()}" for use in found]


if __name__ == "__main__":
    sys.exit(main())
