"""The page of `uniference report` in headless Chromium, opened as a file. `PICTURES=DIR make browser` keeps
screenshots."""

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from webdriver import Browser, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

# Program with compute, exposed communication, a late peer, ranges and a sleep.
TRAIN = """
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
inputs = torch.randn(16, 64)
for _ in range(3):
    with record_function("step <b>"):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
time.sleep(0.001)
if dist.get_rank() == 0:
    dist.send(torch.zeros(1000), 1)
elif dist.get_rank() == 1:
    dist.recv(torch.zeros(1000), 0)
dist.barrier()
dist.destroy_process_group()
"""
CLUSTER = """
[[device]]
name = "board"
count = 2
model = "raspberry-pi-5"
power = { idle = "3 W", busy = "12 W" }
[[device]]
name = "old"
model = "raspberry-pi-5"
slowdown = 3
power = { idle = "3 W", busy = "8 W" }
[network]
bandwidth = "1 Gbps"
latency = "200 us"
"""
# Charts of one run on a page; memory over time has a chart for each rank, of which one is visible.
CHARTS = [
    "timeline", "ranks", "network", "links", "operations-by-size", "operations", "phases", "memory-rank-0",
    "memory-rank-1", "memory-rank-2", "memory", "energy", "critical-path", "what-if",
]  # fmt: skip
# Script that returns for each chart the number of drawn shapes, and whether any pixel of its canvas has a colour;
# `null` for hidden charts.
DRAWN = """
return charts.map(({ name, box, drawn }) => {
  if (box.clientWidth === 0) return [name, null, null];
  const canvas = box.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const coloured = new Set();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 0) coloured.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  return [name, drawn.getZr().storage.getDisplayList(true).length, coloured.size];
});
"""


def option_of(chart: str) -> str:
    """Begins a script that reads a chart's options."""
    return f'const option = charts.find((chart) => chart.name === "train-{chart}").drawn.getOption();'


def command(*words: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "uniference", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, the same run on a faster network, the report of the first, and pages of one run and of
    all."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "train.py").write_text(TRAIN)
    (folder / "cluster.toml").write_text(CLUSTER)
    command("run", "--cluster", "cluster.toml", "--out", "train", "train.py", cwd=folder)
    command("replay", "train", "--set", "network.bandwidth=*10", "--out", "faster", cwd=folder)
    (folder / "summary").mkdir()
    shutil.copy(folder / "train" / "report.json", folder / "summary")
    command("report", "train", "--out", "one.html", cwd=folder)
    command("report", "train", "faster", "summary", "--out", "all.html", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def keep(browser: Browser, request: pytest.FixtureRequest) -> Iterator[None]:
    """Keeps a screenshot of the page if `PICTURES` is set."""
    yield
    if pictures := os.environ.get("PICTURES"):
        Path(pictures).mkdir(parents=True, exist_ok=True)
        browser.photograph(Path(pictures) / f"{request.node.name}.png")


@pytest.mark.usefixtures("keep")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
@pytest.mark.parametrize("page", ["one", "all"])
def test_every_chart_is_drawn(folder: Path, browser: Browser, page: str, width: int, dark: bool) -> None:
    browser.open(folder / f"{page}.html", width=width, dark=dark)
    drawn = {name: (shapes, colours) for name, shapes, colours in browser.run(DRAWN)}
    expected = {f"train-{name}" for name in CHARTS}
    assert expected <= set(drawn)
    if page == "all":
        assert expected <= {name.replace("faster-", "train-") for name in drawn if name.startswith("faster-")}
        assert {"makespans", "average-ranks", "critical-paths", "summary-ranks", "summary-critical-path"} <= set(drawn)
        assert "summary-timeline" not in drawn
    hidden = {name for name, (shapes, _) in drawn.items() if shapes is None}
    assert hidden == {name for name in drawn if "memory-rank-" in name and not name.endswith("-0")}
    for name, (shapes, colours) in drawn.items():
        assert name in hidden or (shapes > 5 and colours > 3), (name, shapes, colours)
    assert browser.complaints() == []
    # Only tables and the list of sections may be wider than the window.
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 22, 28)" if dark else "rgb(246, 247, 249)"
    )


def test_tables_are_sorted_by_their_titles(folder: Path, browser: Browser) -> None:
    browser.open(folder / "one.html")
    column = 'return [...document.querySelectorAll("#ranks tbody tr")].map((row) => row.cells[0].textContent)'
    compute = 'document.querySelectorAll("#ranks th button")[3]'
    state = 'return document.querySelectorAll("#ranks th")[3].getAttribute("aria-sort")'
    assert browser.run(column) == ["0", "1", "2"]
    browser.run(f"{compute}.click()")
    # The old board computes longest, so rank 2 comes first.
    assert (browser.run(column)[0], browser.run(state)) == ("2", "descending")
    browser.run(f"{compute}.click()")
    assert (browser.run(column)[2], browser.run(state)) == ("2", "ascending")


def test_the_timeline_is_zoomed_with_keys_and_buttons(folder: Path, browser: Browser) -> None:
    browser.open(folder / "one.html")
    zoom = f"{option_of('timeline')} return [option.dataZoom[0].start, option.dataZoom[0].end]"
    key = 'document.querySelector("#timeline .chart").dispatchEvent(new KeyboardEvent("keydown", {{ key: "{}" }}))'
    assert browser.run(zoom) == [0, 100]
    for pressed, expected in [("+", [25, 75]), ("ArrowRight", [37.5, 87.5]), ("ArrowLeft", [25, 75]), ("0", [0, 100])]:
        browser.run(key.format(pressed))
        assert browser.run(zoom) == expected, pressed
    browser.run(
        '[...document.querySelectorAll("#timeline button")].find((button) => button.textContent === "Zoom in").click()'
    )
    assert browser.run(zoom) == [25, 75]
    assert browser.complaints() == []


def test_the_network_plays(folder: Path, browser: Browser) -> None:
    browser.open(folder / "one.html")
    widths = f"{option_of('network')} return option.series[0].links.map((link) => link.lineStyle.width)"
    slider = 'document.querySelector("#links input[type=range]")'
    browser.run(f"{slider}.value = 0; {slider}.oninput()")
    first = browser.run(widths)
    assert len(first) == 6
    browser.run('document.querySelector("#links .tools button").click()')
    pictures = set()
    for _ in range(600):
        time.sleep(0.1)
        pictures.add(tuple(browser.run(widths)))
        if browser.run('return document.querySelector("#links .tools button").textContent') == "Play":
            break
    assert len(pictures) > 3
    assert int(browser.run(f"return {slider}.value")) == int(browser.run(f"return {slider}.max"))
    assert browser.complaints() == []


def test_the_theme_can_be_chosen(folder: Path, browser: Browser) -> None:
    browser.open(folder / "one.html", dark=True)
    ground = "return getComputedStyle(document.body).backgroundColor"
    chosen = 'document.getElementById("theme").click(); return document.getElementById("theme").textContent'
    dark, light = "rgb(18, 22, 28)", "rgb(246, 247, 249)"
    assert browser.run(ground) == dark
    for words, colour in [("Theme: light", light), ("Theme: dark", dark), ("Theme: as the system", dark)]:
        assert browser.run(chosen) == words
        assert browser.run(ground) == colour


def test_charts_have_texts_and_names_are_no_elements(folder: Path, browser: Browser) -> None:
    browser.open(folder / "one.html")
    texts = browser.run("return charts.map(({ box }) => [box.getAttribute('role'), box.getAttribute('aria-label')])")
    assert all(role == "img" and len(text) > 20 for role, text in texts), texts
    # The range `step <b>` of the program.
    assert browser.run('return document.querySelector("#phases tbody").textContent').count("step <b>") == 3
    assert browser.run('return document.querySelectorAll("b").length') == 0


def test_figures_are_files(folder: Path) -> None:
    said = command("report", "train", "--out", "figures.html", "--figures", "figures", cwd=folder)
    # Modelled compute has an interval, which the makespan's chart shows.
    names = ["makespan", *(f"train-{name}" for name in CHARTS)]
    assert f"figures: figures ({len(names)} charts, each as SVG and PNG)" in said
    files = {path.name for path in (folder / "figures").iterdir()}
    assert files == {f"{name}.{ending}" for name in names for ending in ("svg", "png")}
    for path in (folder / "figures").iterdir():
        if path.suffix == ".svg":
            shapes = list(ElementTree.fromstring(path.read_text()).iter())
            assert len(shapes) > 5, path
        else:
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n"), path


def test_figures_without_a_browser_are_refused(folder: Path) -> None:
    words = [sys.executable, "-m", "uniference", "report", "train", "--out", "none.html", "--figures", "none"]
    environment = os.environ | {"PATH": str(folder)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --figures requires Chromium or Chrome" in done.stderr
    assert "\nhint: " in done.stderr
    assert not (folder / "none.html").exists()
