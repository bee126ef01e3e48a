"""Writes docs/reference/python-api.md from the signatures and docstrings of the public Python modules.

python scripts/python_api.py [--check]

Sources are parsed, not imported, so this needs neither torch nor the extension, whose classes are described by
`_native.pyi`. With `--check` nothing is written, and the exit code is 1 if the page is out of date.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / "python"
PAGE = ROOT / "docs" / "reference" / "python-api.md"
MODULES = ["uniference", "uniference.plots", "uniference.testing", "uniference.chakra"]
EXAMPLE = ">>> "
INTRODUCTION = """\
# Python API

<!-- Made from signatures and docstrings by `make api`. Edit those. -->

The package has type annotations (`py.typed`), and importing it does not import torch. A script that is simulated needs
none of it.
"""

Definition = ast.ClassDef | ast.FunctionDef


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE.relative_to(ROOT)} is out of date: run `make api`", file=sys.stderr)
        return 1
    return 0


def page() -> str:
    return INTRODUCTION + "".join(f"\n{section}\n" for module in MODULES for section in describe_module(module))


def describe_module(name: str) -> Iterator[str]:
    tree = parse(name)
    yield f"## {name}"
    yield prose(ast.get_docstring(tree))
    for public in exported(tree):
        yield from describe(public, find(tree, public))


def parse(module: str) -> ast.Module:
    base = PYTHON.joinpath(*module.split("."))
    candidates = [base.with_suffix(".py"), base / "__init__.py", base.with_suffix(".pyi")]
    return ast.parse(next(path for path in candidates if path.exists()).read_text())


def exported(tree: ast.Module) -> list[str]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(statement.value)
            return names
    raise LookupError("a public module has no __all__")


def find(tree: ast.Module, name: str) -> Definition:
    """The definition of a public name, in this module or in the module from which it is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return find(parse(node.module), name)
    raise LookupError(f"{name} is exported, but not defined")


def describe(name: str, node: Definition) -> Iterator[str]:
    yield f"### {name}"
    if isinstance(node, ast.FunctionDef):
        yield code(signature(node))
        yield prose(ast.get_docstring(node))
        return
    constructor = next((each for each in functions(node) if each.name == "__init__"), None)
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {name}" + (f"({bases})" if bases else "")
    yield code(head + ("\n" + signature(constructor, name, bound=True) if constructor else ""))
    yield prose(ast.get_docstring(node))
    rows = list(members(node))
    if rows and not any(meaning for _, meaning in rows):
        yield code("\n".join(member for member, _ in rows))
    elif rows:
        yield "| member | meaning |\n|---|---|\n" + "\n".join(
            f"| `{cell(member)}` | {meaning}".rstrip() + " |" for member, meaning in rows
        )


def members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Fields, constants, properties and methods, in the order of the source."""
    following = [*node.body[1:], ast.Pass()]
    for statement, after in zip(node.body, following, strict=True):
        if isinstance(statement, ast.AnnAssign):
            yield f"{ast.unparse(statement.target)}: {ast.unparse(statement.annotation)}", cell(attribute_text(after))
        elif isinstance(statement, ast.Assign) and not ast.unparse(statement).startswith("_"):
            yield ast.unparse(statement), ""
        elif isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            if any(ast.unparse(each).endswith((".setter", "overload")) for each in statement.decorator_list):
                continue
            shown = signature(statement, statement.name, bound=True)
            if any(ast.unparse(each) == "property" for each in statement.decorator_list):
                shown = f"{statement.name}: {ast.unparse(statement.returns) if statement.returns else 'Any'}"
            yield shown, cell(ast.get_docstring(statement))


def functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (each for each in node.body if isinstance(each, ast.FunctionDef))


def attribute_text(node: ast.stmt) -> str | None:
    """The string that documents the attribute before it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None


def signature(node: ast.FunctionDef, name: str | None = None, bound: bool = False) -> str:
    # `unparse` writes `ranks: int=4`; PEP 8 requires blanks.
    arguments = re.sub(r"(: [^=]*?)=", r"\1 = ", ast.unparse(node.args))
    if bound:
        arguments = arguments.removeprefix("self").removeprefix(", ")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{name or node.name}({arguments}){returns}"
    if len(line) <= 100:
        return line
    # One parameter per line; commas inside brackets do not separate parameters.
    lines = re.sub(r", (?=\*|\w+:)", ",\n    ", arguments)
    return f"{name or node.name}(\n    {lines},\n){returns}"


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: paragraphs are filled, examples and indented code are unchanged."""

    def shown(paragraph: str) -> str:
        if paragraph.startswith(EXAMPLE):
            return f"```pycon\n{paragraph}\n```"
        return paragraph if paragraph.startswith("    ") else textwrap.fill(paragraph, 120, break_on_hyphens=False)

    return "\n\n".join(map(shown, (docstring or "").split("\n\n")))


def cell(docstring: str | None) -> str:
    """A docstring for a cell of a table, without examples."""
    paragraphs = (docstring or "").split("\n\n")
    text = " ".join(paragraph for paragraph in paragraphs if not paragraph.startswith(EXAMPLE))
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
