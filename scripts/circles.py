"""Checks that the modules of a crate depend on each other in one direction: `circles.py CRATE...`, by default
`crates/sim`.

Two modules of one parent may not use each other, through any of their files. A parent and its child may, because the
child is a part of the parent. Tests are exempt.
"""

import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Module = tuple[str, ...]

USE = re.compile(r"(?m)^[ \t]*(pub(?:\([^)]*\))?[ \t]+)?use\s+([^;]+);")
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")
# Test modules: declared (`mod tests;`), or inline up to the closing brace, which rustfmt indents like the opening line.
TESTS = re.compile(
    r"(?ms)^([ \t]*)#\[cfg\(test\)\]\n(?:[ \t]*#\[[^\n]*\]\n)*[ \t]*(?:pub(?:\([^)]*\))? )?mod \w+(?:;| \{.*?^\1\})"
)


def main() -> int:
    """Prints each circle; the exit code is 1 if there is one."""
    circles = [circle for crate in sys.argv[1:] or ["crates/sim"] for circle in circles_of(Path(crate))]
    for circle in circles:
        print(f"error: modules depend on each other in a circle: {circle}", file=sys.stderr)
    if not circles:
        print("no circles between modules")
    return 1 if circles else 0


def circles_of(crate: Path) -> Iterator[str]:
    """Each circle among the children of one module, with an example file for each of its edges."""
    modules = read(crate / "src")
    reexports = {module: dict(exported(module, code)) for module, code in modules.items()}
    arrows: dict[Module, dict[str, dict[str, Module]]] = defaultdict(lambda: defaultdict(dict))
    for module, code in modules.items():
        for target in targets(module, code, modules, reexports):
            shared = next((i for i, (a, b) in enumerate(zip(module, target, strict=False)) if a != b), None)
            if shared is not None:
                arrows[module[:shared]][module[shared]].setdefault(target[shared], module)
    for parent, graph in arrows.items():
        if circle := find_circle(graph):
            steps = [f"{a} -> {b} ({'/'.join(graph[a][b])})" for a, b in itertools.pairwise(circle)]
            yield f"{crate}: in {'::'.join(('crate', *parent))}: " + ", ".join(steps)


def read(source: Path) -> dict[Module, str]:
    """The code of each module without comments and tests; the crate's root is the empty path."""
    modules = {}
    for path in sorted(source.rglob("*.rs")):
        parts = path.relative_to(source).with_suffix("").parts
        if "tests" in parts or parts == ("main",):
            continue
        code = re.sub(r"//[^\n]*", "", path.read_text())
        modules[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = TESTS.sub("", code)
    return modules


def exported(module: Module, code: str) -> Iterator[tuple[str, Module]]:
    """Names that a module re-exports, and the origin of each."""
    for use in USE.finditer(code):
        if use.group(1):
            for path in leaves(use.group(2)):
                yield path[-1], absolute(module, path[:-1])


def targets(
    module: Module, code: str, modules: dict[Module, str], reexports: dict[Module, dict[str, Module]]
) -> Iterator[Module]:
    """The modules that a module uses, in its imports and elsewhere."""
    paths = [path for use in USE.finditer(code) for path in leaves(use.group(2))]
    paths += [tuple(use.group().split("::")) for use in PATH.finditer(USE.sub("", code))]
    for path in paths:
        if path[0] not in ("crate", "super", "self"):
            continue
        target, *names = longest(absolute(module, path), modules)
        while names and (origin := reexports[target].get(names[0])) and origin != target:
            found, *names = longest((*origin, *names), modules)
            if found == target:
                break
            target = found
        yield target


def longest(path: Module, modules: dict[Module, str]) -> tuple[Module, *tuple[str, ...]]:
    """The deepest module of a path, then the names of the item in it."""
    size = next(size for size in range(len(path), -1, -1) if path[:size] in modules)
    return path[:size], *path[size:]


def absolute(module: Module, path: Module) -> Module:
    """A path of a `use` from the crate's root."""
    base, rest = module, list(path)
    if rest and rest[0] == "crate":
        base, rest = (), rest[1:]
    while rest and rest[0] in ("super", "self"):
        base, rest = (base[:-1] if rest[0] == "super" else base), rest[1:]
    return (*base, *rest)


def leaves(tree: str) -> Iterator[Module]:
    """The paths of a `use`: `a::{b, c::d as e}` are `a::b` and `a::c::d`."""
    tree = tree.strip()
    if "{" not in tree:
        yield tuple(re.sub(r"\s+as\s+\w+", "", tree).split("::"))
        return
    head, _, tail = tree.partition("{")
    depth, start, inner = 0, 0, tail.rsplit("}", 1)[0] + ","
    for index, character in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            if part := inner[start:index].strip():
                yield from leaves((head + part).removesuffix("::self"))
            start = index + 1


def find_circle(graph: dict[str, dict[str, Module]]) -> list[str] | None:
    """The names of one cycle, the first one twice."""
    done: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str] | None:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node not in done:
            done.add(node)
            for other in sorted(graph.get(node, {})):
                if circle := visit(other, [*trail, node]):
                    return circle
        return None

    return next((circle for node in sorted(graph) if (circle := visit(node, []))), None)


if __name__ == "__main__":
    sys.exit(main())
