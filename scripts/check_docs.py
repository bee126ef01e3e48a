"""Checks the documentation: lines, links, anchors, the table of contents, the decision records' index.

python scripts/check_docs.py [--site FOLDER]

Markdown lines have at most 120 columns, tables and code blocks excepted. Every link to a file of this repository, and to a heading in
one, leads somewhere, and files that are named as code exist. Every page below docs/ is in docs/SUMMARY.md, every decision record also in
docs/decisions/README.md and in ARCHITECTURE.md. Doc comments of Rust are more than a question word. Nothing is fetched: links to other
sites are not followed.

With `--site`, the pages that mdbook has built there are checked in place of the sources: every link, image and anchor in them.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COLUMNS = 120
# An inline link or image, or the target of a reference. Targets in this repository have no blanks and no parentheses.
LINK = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]]+\]:\s*(\S+)")
# A doc comment that names no subject.
RIDDLE = re.compile(r"^\s*//[/!] (?:Who|Whose|What|When|Where|Which|Why|How(?: many| long| much)?)(?: there are)?\.$")
# Code that names a file or a folder of this repository.
PATH = re.compile(r"`((?:benches|crates|docs|examples|fuzz|python|requirements|scripts|tests)/[\w./*-]+)`")


def main() -> int:
    if sys.argv[1:2] == ["--site"]:
        complaints = list(check_site(Path(sys.argv[2]).resolve()))
    else:
        complaints = [complaint for page in pages() for complaint in check(page)]
        complaints += list(missing_from_contents())
        complaints += list(riddles())
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def pages() -> list[Path]:
    """All Markdown files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in sorted(listed.stdout.splitlines()) if (ROOT / name).exists()]


def check(page: Path) -> Iterator[str]:
    for number, line in prose(page):
        where = f"{page.relative_to(ROOT)}:{number}"
        if len(line) > COLUMNS and not line.lstrip().startswith("|"):
            yield f"{where}: {len(line)} columns, {COLUMNS} are allowed"
        for path in PATH.findall(line):
            if not (ROOT / path).exists() and not list(ROOT.glob(path)):
                yield f"{where}: `{path}`: no such file"
        for match in LINK.finditer(re.sub(r"`[^`]*`", "``", line)):
            if reason := broken(page, match[1] or match[2]):
                yield f"{where}: {match[1] or match[2]}: {reason}"


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines outside of fenced code blocks."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def broken(page: Path, target: str) -> str | None:
    """The reason that a link is dead."""
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if file.is_relative_to(DOCS / "rust"):
        # `make docs` puts rustdoc's pages there.
        crate = file.relative_to(DOCS / "rust").parts[0].removeprefix("uniference_")
        return None if (ROOT / "crates" / crate).exists() else "no such crate"
    if page.is_relative_to(DOCS) and not file.is_relative_to(DOCS):
        return "leads out of docs/, where the site ends; link to the repository's address"
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return "no such heading"
    return None


@cache
def anchors(page: Path) -> frozenset[str]:
    """The ids of a page's headings, as mdbook and GitHub make them."""
    found: list[str] = []
    for _, line in prose(page):
        if heading := re.match(r"#{1,6} +(.*)", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w -]", "", text.strip().lower()).replace(" ", "-")
            repeats = sum(re.fullmatch(re.escape(slug) + r"(-\d+)?", other) is not None for other in found)
            found.append(f"{slug}-{repeats}" if repeats else slug)
    return frozenset(found)


def riddles() -> Iterator[str]:
    for file in sorted((ROOT / "crates").rglob("*.rs")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if RIDDLE.match(line):
                yield f"{file.relative_to(ROOT)}:{number}: this doc comment names no subject"


def missing_from_contents() -> Iterator[str]:
    site = [page for page in pages() if page.is_relative_to(DOCS) and page.name not in ("SUMMARY.md", "template.md")]
    yield from missing(DOCS / "SUMMARY.md", site)
    records = [page for page in site if re.match(r"\d{4}-", page.name)]
    yield from missing(DOCS / "decisions" / "README.md", records)
    yield from missing(ROOT / "ARCHITECTURE.md", records)


def missing(index: Path, expected: list[Path]) -> Iterator[str]:
    links = (match[1] for _, line in prose(index) for match in LINK.finditer(line) if match[1])
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links}
    for page in expected:
        if page not in linked:
            yield f"{index.relative_to(ROOT)}: no link to {page.relative_to(ROOT)}"


class Page(HTMLParser):
    """The links and the ids of an HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" and value:
                self.ids.add(value)


def check_site(site: Path) -> Iterator[str]:
    """Dead links of the built site. Rustdoc checks its own pages; `print.html` repeats all others."""
    parsed = {path: Page(path) for path in sorted(site.rglob("*.html")) if not path.is_relative_to(site / "rust")}
    if not parsed:
        yield f"{site}: no pages"
    for path, page in parsed.items():
        if path.name in ("print.html", "404.html"):
            continue
        for link in page.links:
            target, _, anchor = unquote(link).partition("#")
            file = (path.parent / target).resolve() if target else path
            if re.match(r"[a-z]+:", link) or file.is_relative_to(site / "rust"):
                continue
            if not file.exists():
                yield f"{path.relative_to(site)}: {link}: no such file"
            elif anchor and file in parsed and anchor not in parsed[file].ids:
                yield f"{path.relative_to(site)}: {link}: no such anchor"


if __name__ == "__main__":
    sys.exit(main())
