"""`make accuracy-devices`: the harness works on a few rows, and the committed page has the harness's format."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_handful_of_rows_is_predicted(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "devices", "neusight", "--few", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "benches")}
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    errors = [
        float(error) for error in re.findall(r"\| (?:mi|a100|v100|p100|t4)\S* bert_large .* \| (\S+) \|", done.stdout)
    ]
    # Each row is estimated with the device's measurements and without. A wrong unit or a missing layer would cause
    # larger errors.
    assert len(errors) >= 4, done.stdout
    assert max(map(abs, errors)) < 60, done.stdout


def test_the_page_has_every_row() -> None:
    page = (ROOT / "docs/explanation/accuracy.md").read_text()
    begin, end = "<!-- devices: written by `make accuracy-devices`: neusight -->", "<!-- /devices: neusight -->"
    section = page.partition(begin)[2].partition(end)[0]
    rows = (ROOT / "benches/devices/rows/neusight.csv").read_text().splitlines()[1:]
    assert f"<details><summary>All {len(rows)} rows</summary>" in section
    assert "| rows | count | mean % | median % | p90 % | worst % | bias % | covered % | others |" in section
