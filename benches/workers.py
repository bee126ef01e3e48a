"""Owns the benchmark of ranks at workers: host time per call beyond that of a local rank, and the link's round trip.

Two ranks, one `at` a worker on this machine's loopback, alternate with the same two ranks run locally. `make bench`
runs it (a minute); `--quick` runs a short version without the link.
"""

import argparse
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bridge import cost, run

CALLS = 500
CLUSTER = """[[device]]
name = "here"
[[device]]
name = "there"
{at}
[network]
preset = "switch"
bandwidth = "10 Gbps"
latency = "10 us"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of it, without the link")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as scratch, worker(Path(scratch)) as listening:
        folder = Path(scratch)
        local, remote = folder / "local.toml", folder / "remote.toml"
        local.write_text(CLUSTER.format(at=""))
        remote.write_text(CLUSTER.format(at='at = "worker"'))
        found = [(a_call(local, []), a_call(remote, listening)) for _ in range(1 if quick else 7)]
    here, there, more = median(a for a, _ in found), median(b for _, b in found), median(b - a for a, b in found)
    print(f"{CALLS} all-reduces of one float, 2 ranks, --compute none: us a call, medians of {len(found)}")
    print(f"{'both local':>12}{'one at a worker':>18}{'more':>8}")
    print(f"{here:>12.1f}{there:>18.1f}{more:>8.1f}", flush=True)
    if not quick:
        trip = round_trip()
        print(
            f"round trip of the link: {trip:.1f} us; a call at a worker takes {more / trip:.2f} of it more (target: 1)"
        )


def a_call(cluster: Path, options: list[str]) -> float:
    """Host time of a call in microseconds."""
    begin, end, cpu = run(["--cluster", str(cluster), *options], "none", [f"all_reduce:4:{CALLS}"])
    return cost(CALLS, begin, end, cpu).wall * 1e6


@contextmanager
def worker(folder: Path) -> Iterator[list[str]]:
    """Runs a worker that joins the run with these options."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    token = folder / "token"
    token.write_text("a token of the benchmark")
    command = [sys.executable, "-m", "uniference", "worker", "--name", "worker", "--join", address]
    with subprocess.Popen([*command, "--token-file", str(token)], stderr=subprocess.DEVNULL) as process:
        try:
            yield ["--listen", address, "--token-file", str(token)]
        finally:
            process.terminate()


def round_trip() -> float:
    """Round-trip time in microseconds, by the benchmark of the crate `link`."""
    command = ["cargo", "bench", "--locked", "--quiet", "--package", "uniference-link", "--bench", "round_trip"]
    said = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = re.search(r"median ([\d.]+) us", said)
    assert found is not None, said
    return float(found[1])


if __name__ == "__main__":
    main()
