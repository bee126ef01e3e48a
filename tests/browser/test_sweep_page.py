"""The page of `uniference sweep` in headless Chromium, opened as a file. `PICTURES=DIR make browser` keeps
screenshots."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from webdriver import Browser, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

# tp = 3 does not divide the number of heads: such a trial fails.
SWEEP = """
name = "layouts <b>"
[program]
workload = "llama"
arguments = ["--layers=2", "--hidden=512", "--heads=8", "--vocab=1024", "--seq=128", "--batch=8"]
[arguments]
tp = [1, 2]
dp = [1, 2]
ffn = [1024, 2048]
[options]
ranks = 2
[cluster]
network.bandwidth = ["1 Gbps", "10 Gbps", "100 Gbps"]
device.0.price = 2.5
[measures]
tokens_per_price = "tokens_per_s * makespan_s / price"
"""
# Script that returns the number of drawn shapes of each chart.
DRAWN = "return charts.map(({ name, drawn }) => [name, drawn.getZr().storage.getDisplayList(true).length]);"
CHOOSE = """
const labels = [...document.querySelectorAll("#controls label")];
const select = labels.find((label) => label.textContent.startsWith(arguments[0])).querySelector("select");
select.selectedIndex = [...select.options].findIndex((option) => option.textContent === arguments[1]);
select.onchange();
done();
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "jobs.toml").write_text(SWEEP)
    command = [sys.executable, "-m", "uniference", "sweep", "jobs.toml", "--out", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "out" / "sweep.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


def test_lines_heat_map_and_pareto_front_are_drawn(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.complaints() == []
    drawn = dict(browser.run(DRAWN))
    assert set(drawn) == {"lines", "heat-map", "pareto"}
    assert all(shapes > 10 for shapes in drawn.values()), drawn
    overview = browser.run("return document.getElementById('overview').textContent;")
    # tp x dp must be 2: of 24 trials 12 fail.
    assert "24" in overview
    assert "12" in overview
    assert "layouts <b>" in overview
    if pictures := os.environ.get("PICTURES"):
        Path(pictures).mkdir(parents=True, exist_ok=True)
        browser.photograph(Path(pictures) / "sweep.png")


def test_what_is_drawn_is_chosen(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.result(CHOOSE, "Measure", "tokens_per_price")
    browser.result(CHOOSE, "Across", "ffn")
    title = "return charts.find((chart) => chart.name === 'lines').drawn.getOption().xAxis[0].name;"
    assert browser.run(title) == "ffn"
    text = browser.run("return document.querySelector('#lines figcaption').textContent;")
    assert text.startswith("tokens_per_price over ffn")
    assert browser.complaints() == []
