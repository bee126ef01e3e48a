"""Checks the wording of pages, comments and docstrings against the mechanical rules of CONTRIBUTING.md.

python scripts/check_words.py [--count] [PATH...]

Every sentence of Markdown pages, and of comments in Rust, Python, C++, JavaScript and shell scripts, is matched with the
patterns of RULES. Code blocks, inline code, quotations and links' targets are not prose. With `--count`, only the number
of matches by rule and by folder is printed. Exit codes: 0 no matches; 1 matches.
"""

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Rule(NamedTuple):
    """A pattern of a sentence, and its replacement in words."""

    name: str
    pattern: re.Pattern[str]
    advice: str


def rule(name: str, pattern: str, advice: str) -> Rule:
    return Rule(name, re.compile(pattern), advice)


# Objects of `take` that are durations.
DURATION = (
    r"(?:\d|as long|longer|up to \d|about \d|at (?:most|least) \d|time\b|to \w+|a (?:second|minute|while|few)|hours|minutes|seconds"
    r"|(?:the|its|their|some|no|any|less|more|much|most|virtual|measured|as much) (?:\w+ )?time)"
)
PHRASES = r"part\b|place\b|effect\b|precedence\b|turns\b"
UNIT = r"(?:ns|us|ms|s|bytes|operations|tokens|GB|MB|KB|GiB|MiB|KiB|W|J)"
TERMS = (
    r"time-outs?|processor time|results? folder|output folder|further tokens|layers of experts|network cards?"
    r"|blocked in communication"
)
RULES = (
    rule(
        "headless", r"^(?:What|Who|Whoever|Whatever|Whose) [^?]*$", "replace the clause by its noun, or name the actor"
    ),
    rule("of", r"^Of (?!course)[^?]*$", "put the noun first, or write `For ...`"),
    rule("as-of", r"\bas of (?:a|an|any|the|all|every)\b", "repeat the noun"),
    rule("participle", r"^(?:Not )?[A-Z]?[a-z]+ed (?:is|are|was|were)\b", "put the subject first"),
    rule(
        "take",
        rf"\b(?:takes?|taking|took|taken)\b(?! (?:{DURATION}|{PHRASES})|[.,;:)]|$)",
        "use the exact verb: use, need, accept, read, choose, occupy; `take` is for durations",
    ),
    rule("beside", r"\b[Bb]esides?\b", "write alongside, concurrently with, compared with or in addition to"),
    rule(
        "one", r"\b[Oo]ne (?:can|must|could|should|wants|needs|would|sees|has to)\b", "write `you`, or name the actor"
    ),
    rule("nobody", r"\b(?:[Nn]obody|[Ss]omebody|[Ww]hoever)\b", "use the passive voice with the fact"),
    rule("per", rf"\b\d[\d.,]* {UNIT} an? [a-z]", "write `per`"),
    rule(
        "link-word",
        r"\b(?:but for|in the mean|at hand|can so|is so|are so|thus)\b",
        "put the link word first, or leave it out",
    ),
    rule("term", rf"\b(?:{TERMS})\b", "use the field's term"),
    rule("where", r"^Where [^?]*$", "write `If`, or name the place"),
    rule("quantity", r"^How (?:many|much|long|often|far)\b[^?]*$", "name the quantity: `Number of ...`"),
)
SUFFIXES = {".md", ".rs", ".py", ".h", ".cpp", ".js", ".sh"}
CODE = re.compile(r"``.*?``|`[^`]*`|\"[^\"]*\"|\]\([^)]*\)|https?://\S+|<[^>]*>")


class Paragraph(NamedTuple):
    """Consecutive lines of prose, without marks of comments."""

    line: int
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true", help="print only the number of matches by rule and by folder")
    parser.add_argument("paths", nargs="*", help="files or folders (default: all that git tracks)")
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    for file in files(options.paths):
        name = file.relative_to(ROOT)
        for line, found, sentence in matches(file):
            counts["/".join(name.parts[:2]) if len(name.parts) > 1 else name.name, found.name] += 1
            if not options.count:
                print(f"{name}:{line}: {found.name}: {found.advice}\n    {sentence}", file=sys.stderr)
    if options.count:
        for (folder, broken), count in sorted(counts.items()):
            print(f"{count:5} {broken:12} {folder}")
    print(f"{sum(counts.values())} sentences against the rules of CONTRIBUTING.md", file=sys.stderr)
    return 1 if counts else 0


def files(paths: list[str]) -> list[Path]:
    """All files with prose that git tracks or would track below the paths."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = (ROOT / name for name in listed.stdout.splitlines())
    return sorted(file for file in found if file.suffix in SUFFIXES and file.exists() and file != Path(__file__))


def matches(file: Path) -> Iterator[tuple[int, Rule, str]]:
    for paragraph in paragraphs(file):
        for sentence in sentences(paragraph.text):
            yield from ((paragraph.line, each, sentence) for each in RULES if each.pattern.search(sentence))


def sentences(text: str) -> list[str]:
    plain = CODE.sub("_", text)
    return [sentence.strip() for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z_])", plain) if sentence.strip()]


def paragraphs(file: Path) -> Iterator[Paragraph]:
    text = file.read_text()
    match file.suffix:
        case ".md":
            return joined(markdown(text))
        case ".py":
            return joined(python(text))
        case ".sh":
            return joined(comments(text, re.compile(r"^\s*#(?!!) ?(.*)$|\s# (.*)$")))
        case _:
            return joined(comments(text, re.compile(r"^\s*//[/!]? ?(.*)$|(?<!:)\s// (.*)$")))


def joined(lines: Iterator[tuple[int, str, bool]]) -> Iterator[Paragraph]:
    """Paragraphs from lines of prose: number, text, and whether the line starts a paragraph."""
    first, last, words = 0, -1, list[str]()
    for number, line, starts in lines:
        if words and (starts or number != last + 1 or not line):
            yield Paragraph(first, " ".join(words))
            words = []
        if line:
            first = first if words else number
            words.append(line)
        last = number
    if words:
        yield Paragraph(first, " ".join(words))


ITEM = re.compile(r"^\s*(?:[-*]|\d+\.|#+|>)\s+")


def prose(number: int, line: str) -> Iterator[tuple[int, str, bool]]:
    """A line of Markdown: cells of a table are paragraphs of their own."""
    if line.lstrip().startswith("|"):
        for cell in line.strip().strip("|").split("|"):
            yield number, "" if set(cell.strip()) <= set("-: ") else cell.strip(), True
        return
    text = ITEM.sub("", line)
    yield number, text.strip().removeprefix("**"), text != line


def unfenced(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, bool]]:
    fenced = False
    for number, line in lines:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield from prose(number, line)


def markdown(text: str) -> Iterator[tuple[int, str, bool]]:
    return unfenced(enumerate(text.splitlines(), 1))


def comments(text: str, mark: re.Pattern[str]) -> Iterator[tuple[int, str, bool]]:
    found = ((number, mark.search(line)) for number, line in enumerate(text.splitlines(), 1))
    return unfenced((number, match[1] if match[1] is not None else match[2]) for number, match in found if match)


def python(text: str) -> Iterator[tuple[int, str, bool]]:
    """Comments, and strings that are statements of their own: docstrings."""
    lines: list[tuple[int, str]] = []
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# (?:type:|noqa|fmt:)", token.string):
            lines.append((token.start[0], token.string.lstrip("#").strip()))
        elif token.type == tokenize.STRING and before in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}:
            body = token.string.strip("rR").strip('"').strip("'")
            lines.extend((token.start[0] + offset, line.strip()) for offset, line in enumerate(body.splitlines()))
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            before = token.type
    return unfenced(iter(lines))


if __name__ == "__main__":
    sys.exit(main())
