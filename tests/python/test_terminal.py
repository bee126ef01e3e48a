"""Names in files with control characters have no effect on a terminal."""

import json
import unicodedata
from pathlib import Path

from harness import uniference

# Escape, bell, return, the C1 introducer, and marks that change the writing direction.
NASTY = "n\x1b[2J\x07\r\x9b1m\u202ee\u2066"


def is_safe(text: str) -> bool:
    return all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp") for c in text)


def test_no_control_character_of_a_file_reaches_the_terminal(tmp_path: Path) -> None:
    name = json.dumps(NASTY)
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(f"name = {name}\n[[device]]\nname = {name}\ncount = 2\nhost = {name}\nper_host = 1\n[network]\n")
    (tmp_path / "bad.toml").write_text(f"[[device]]\nname = {name}\n[network]\n{name} = 1\n")
    (tmp_path / "slow.toml").write_text(cluster.read_text().replace("per_host = 1", "slowdown = 2\nper_host = 1"))
    missing = tmp_path / f"{NASTY}.toml"
    job = ["workload", "llama", "--help"]
    commands: list[list[object]] = [
        ["cluster", "check", cluster],
        ["cluster", "check", tmp_path / "bad.toml"],
        ["cluster", "check", missing],
        ["cluster", "check", cluster, "--set", f"{NASTY}=1"],
        ["replay", missing, "--cluster", cluster],
        ["compare", missing, missing],
        ["chakra", "check", missing],
        ["run", "--cluster", cluster, missing],
        ["run", "--ranks", "2", "--bandwidth", NASTY, __file__],
        [NASTY],
        job,
        ["doctor"],
    ]
    for words in commands:
        done = uniference(*words, cwd=tmp_path)
        assert is_safe(done.out), (words, done.out)
        assert is_safe(done.err), (words, done.err)
    script = tmp_path / "sleep.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group()\ndist.barrier()\n")
    for words in (["run", "--out", "out"], ["run", "--json", "--compute", "none", "--out", "json"]):
        done = uniference(*words, "--cluster", tmp_path / "slow.toml", script, cwd=tmp_path)
        assert done.code == 0, done.err
        assert is_safe(done.out), done.out
        assert is_safe(done.err), done.err
    assert json.loads(done.out)["ranks"][0]["device"] == f"{NASTY}.0"
    replayed = uniference("replay", "out", "--out", "again", cwd=tmp_path)
    assert replayed.code == 0, replayed.err
    assert is_safe(replayed.out + replayed.err)
    compared = uniference("compare", "out", "again", cwd=tmp_path)
    assert compared.code == 0, compared.err
    assert is_safe(compared.out + compared.err)
