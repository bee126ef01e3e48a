"""The nursery works: without it the suite would be three times as slow, and no other test would notice."""

from pathlib import Path

from harness import run_script

PARENTS = """
import os
zygote = os.getppid()
print("zygote:", open(f"/proc/{zygote}/cmdline").read().replace("\\0", " "))
"""


def test_ranks_come_from_the_nursery(tmp_path: Path) -> None:
    done = run_script(tmp_path, PARENTS, ranks=1)
    assert done.code == 0, done.err
    assert "nursery.py" in done.out, done.out
