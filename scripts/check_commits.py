"""Checks the subjects of commits: an imperative verb and an object, at most 72 characters, one change.

python scripts/check_commits.py [REVISIONS]

Without REVISIONS (in the syntax of `git log`), all commits after FIRST are checked. If the clone lacks FIRST, no commit is checked, and a
message says so.
"""

import re
import subprocess
import sys
from collections.abc import Iterator

# The last commit that need not follow the rule.
FIRST = "3b9c3506eb8e"
COLUMNS = 72
# Words that are no verbs, but that subjects have begun with.
NOT_VERBS = re.compile(
    r"an?|the|this|that|these|those|its?|they|we|who|whose|what|when|where|which|why|how|all|both|each|every|some|no|not|more|two|three"
    r"|in|on|of|by|for|from|to|with|without|as|at|if|tests|docs|accuracy"
)
# Endings of participles and of the third person, and imperatives with the same endings.
NOT_IMPERATIVES = re.compile(r".*(?:ed|ing|s)")
IMPERATIVES = re.compile(
    r"alias|bias|bring|embed|exceed|feed|focus|need|ping|proceed|seed|shed|shred|speed|spring|string|succeed|\w+ss"
)


def main() -> int:
    """Prints each complaint; the exit code is 1 if there is one, and 2 if git does not know REVISIONS."""
    revisions = sys.argv[1:] or [f"{FIRST}..HEAD"]
    log = subprocess.run(["git", "log", "--no-merges", "--format=%h %s", *revisions], capture_output=True, text=True)
    if log.returncode:
        print(f"commits are not checked: {log.stderr.strip()}", file=sys.stderr)
        return 2 if sys.argv[1:] else 0
    complaints = [complaint for line in log.stdout.splitlines() for complaint in check(*line.split(" ", 1))]
    for complaint in complaints:
        print(f"error: {complaint}", file=sys.stderr)
    if complaints:
        print('hint: write "VERB OBJECT", such as "Refuse device names that match another product"', file=sys.stderr)
    return 1 if complaints else 0


def check(commit: str, subject: str) -> Iterator[str]:
    """Complaints about the subject of a commit."""
    where = f"commit {commit}: {subject!r}"
    if len(subject) > COLUMNS:
        yield f"{where}: {len(subject)} characters, {COLUMNS} are allowed"
    if ";" in subject:
        yield f"{where}: two changes; a commit has one"
    if subject.endswith("."):
        yield f"{where}: ends with a period"
    first, *rest = subject.split() or [""]
    word = first.lower().rstrip(",:")
    if not first[:1].isupper() or not word.isalpha():
        yield f"{where}: the first word is no capitalised verb"
    elif NOT_VERBS.fullmatch(word) or (NOT_IMPERATIVES.fullmatch(word) and not IMPERATIVES.fullmatch(word)):
        yield f"{where}: {first!r} is no imperative verb"
    elif not rest:
        yield f"{where}: the verb has no object"


if __name__ == "__main__":
    sys.exit(main())
