"""Latencies of requests by the rate of their arrivals, the saturation point, and a comparison with queueing theory."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "generate")]

import studies
from batching import poisson
from studies import Row, Runs
from uniference import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROGRAM, BOARDS = HERE / "serve.py", HERE / "boards.toml"
REQUESTS, TOKENS = 24, 8
RATES = [0.5, 1, 2, 4, 8]
SERVERS = {"one at a time": (2, 1), "up to 8": (2, 8), "up to 8, one board": (1, 8)}
"""Number of boards, and largest batch."""
LOAD, EQUAL_REQUESTS = 0.7, 10_000
"""Utilization of the server by equal requests, and their number."""
TIMES = ("queueing", "first_token", "each_token", "end_to_end")


def measure(runs: Runs) -> list[Row]:
    """A run for each server and rate, because batches depend on the clock, so nothing can be replayed."""
    return [*by_rate(runs), in_theory(runs)]


def by_rate(runs: Runs) -> list[Row]:
    """SmolLM2-135M with requests of a Poisson process, and with those of a table."""
    rows: list[Row] = []
    for server, (boards, most) in SERVERS.items():
        arrivals = {str(rate): ["--requests", REQUESTS, "--tokens", TOKENS, "--rate", rate] for rate in RATES}
        arrivals["arrivals.csv"] = ["--arrivals", HERE / "arrivals.csv"]
        for rate, words in arrivals.items():
            options = {"set": f"device.board.count={boards}", "values": "small"}
            run = runs.simulate(f"{server}-{rate}", PROGRAM, ["--most", most, *words], BOARDS, **options)
            rows.append(figures(server, rate, run) | dict.fromkeys(("theory_s", "low_s", "high_s"), ""))
    return rows


def in_theory(runs: Runs) -> Row:
    """Equal requests, one at a time: the mean wait has a closed form. The model is small, so that there can be many."""
    words = ["--shape", "tiny", "--tokens", 1, "--most", 1]
    alone = runs.simulate("tiny", PROGRAM, [*words, "--requests", 3, "--rate", 0.001], BOARDS)
    burst = runs.simulate("burst", PROGRAM, [*words, "--requests", 21, "--rate", 1e6], BOARDS)
    ends = seconds(burst)["end_to_end"]
    # A service is longer if another one has just ended, whose end the other board has yet to reach.
    service = (ends[-1] - ends[0]) / (len(ends) - 1)
    rate = LOAD / seconds(alone)["end_to_end"][-1]
    words += ["--requests", EQUAL_REQUESTS, "--rate", repr(rate)]
    run = runs.simulate("equal", PROGRAM, words, BOARDS, record="summary")
    # Pollaczek and Khinchine's mean wait for services of equal length.
    utilization = rate * service
    theory = utilization * service / (2 * (1 - utilization))
    low, high = interval(utilization, service)
    row = figures("equal requests, one at a time", f"{rate:.6g}", run)
    if not low <= float(row["queueing_mean_s"]) <= high:
        raise SystemExit(f"mean wait of equal requests: {row['queueing_mean_s']} s, not {low} to {high} s")
    return row | {"theory_s": theory, "low_s": low, "high_s": high}


def figures(server: str, rate: str, run: Run) -> Row:
    """Quantiles over all requests of a run."""
    row: Row = {"server": server, "rate_per_s": rate}
    row["passes_s"] = sum(phase.total_s for phase in run.phases if phase.rank == 0)
    for name, sample in seconds(run).items():
        row[f"{name}_mean_s"] = sum(sample) / len(sample)
        for part in (50, 90, 99):
            row[f"{name}_p{part}_s"] = quantile(sample, part / 100)
    return row


def seconds(run: Run) -> dict[str, list[float]]:
    """Times of each request, in order of arrival."""
    lines = [line.split(": ")[1].split() for line in studies.said(run, "request ")]
    return {name: [float(line[place]) for line in lines] for place, name in enumerate(TIMES)}


def quantile(sample: list[float], part: float) -> float:
    """A quantile, interpolated linearly between two values."""
    ordered = sorted(sample)
    place = part * (len(ordered) - 1)
    below = int(place)
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def interval(utilization: float, service: float) -> tuple[float, float]:
    """Interval of the mean wait in an M/D/1 queue, with a probability of 95 %: from 400 other samples of arrivals."""
    means = []
    for seed in range(1, 401):
        wait = total = 0.0
        for earlier, later in pairwise(poisson(utilization / service, EQUAL_REQUESTS, seed)):
            # Lindley's recursion: a request that arrives before the server is free waits for the rest.
            wait = max(wait + service - (later - earlier), 0.0)
            total += wait
        means.append(total / EQUAL_REQUESTS)
    return quantile(means, 0.025), quantile(means, 0.975)


def draw(rows: list[Row]) -> "Figure":
    """End-to-end and first-token latency over the rate, median and 90 %."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2)
    for panel, name, title in zip(panels, ("first_token", "end_to_end"), ("first token", "end to end"), strict=True):
        for place, server in enumerate(SERVERS):
            line = [row for row in rows if row["server"] == server and row["rate_per_s"] in RATES]
            rates = [row["rate_per_s"] for row in line]
            panel.plot(rates, [row[f"{name}_p90_s"] for row in line], marker="o", color=f"C{place}", label=server)
            panel.plot(rates, [row[f"{name}_p50_s"] for row in line], color=f"C{place}", linestyle="--")
        panel.set(title=title, xlabel="requests a second", yscale="log")
    panels[0].set_ylabel("s: median (dashed), 90 %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize="small")
    return figure


if __name__ == "__main__":
    studies.main(__file__, measure, draw)
