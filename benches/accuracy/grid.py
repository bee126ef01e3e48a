"""Owns the grid: the emulated networks, and the operations measured on each. It measures nothing itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

SIZES = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
COLD_SIZES = (1 << 16, 1 << 20)
PINGPONG_SIZES = (1, *SIZES)
# Size of the emulated switch's queue per host.
QUEUE = "1.5 MB"
# Messages with a longer transmission time are left out.
_LONGEST_S = 0.09
# Difference of the last host, by shape.
_LAST_HOST = {
    "equal": "",
    "slow host": 'bandwidth = "{slow} Mbps"',
    "far host": 'latency = "{far} us"',
    "slow egress": 'bandwidth = {{ egress = "{slow} Mbps" }}',
}


@dataclass(frozen=True)
class Setting:
    """A network to emulate; without a rate it is this machine's loopback."""

    ranks: int
    mbps: int | None
    latency_us: int
    shape: str = "equal"
    # Whether new connections are measured too.
    cold: bool = False

    @property
    def name(self) -> str:
        if self.mbps is None:
            return f"loopback, {self.ranks} ranks"
        return f"{self.ranks} ranks, {self.mbps} Mbit/s, {self.latency_us / 1000:g} ms, {self.shape}"

    @property
    def folder(self) -> str:
        return self.name.replace("/", "-").replace(", ", "_").replace(" ", "-")

    def sizes(self, of: tuple[int, ...]) -> list[str]:
        """The sizes that the network carries in a reasonable time."""
        return [str(size) for size in of if size * 8 <= _LONGEST_S * (self.mbps or 1000) * 1e6]

    def cluster(self) -> str:
        """The cluster file of the emulated network."""
        assert self.mbps is not None
        devices = "".join(f'[[device]]\nname = "rank.{rank}"\n' for rank in range(self.ranks))
        network = f'[network]\npreset = "switch"\nbandwidth = "{self.mbps} Mbps"\nlatency = "{self.latency_us} us"\n'
        network += f'queue = "{QUEUE}"\n'
        last = _LAST_HOST[self.shape].format(slow=self.mbps // 4, far=3 * self.latency_us + 4000)
        return devices + network + (f'[network.host."rank.{self.ranks - 1}"]\n{last}\n' if last else "")


def full() -> Iterator[Setting]:
    """All settings: hours."""
    for ranks, mbps, latency, shape in product((2, 4), (10, 100, 1000), (0, 1000, 5000), _LAST_HOST):
        yield Setting(ranks, mbps, latency, shape, cold=latency > 0)


def usual() -> list[Setting]:
    """A part of the settings that shows every effect, the most important first: three quarters of an hour."""
    equal = [
        Setting(ranks, mbps, latency, cold=True)
        for mbps, latency in ((100, 1000), (300, 5000), (1000, 1000), (100, 5000), (300, 1000), (1000, 5000))
        for ranks in (4, 2)
    ]
    unequal = [
        Setting(ranks, mbps, latency, shape)
        for ranks, mbps, latency in ((4, 100, 1000), (2, 300, 5000), (4, 300, 5000), (2, 1000, 1000))
        for shape in _LAST_HOST
        if shape != "equal"
    ]
    near = [Setting(2, 100, 0), Setting(4, 100, 0), Setting(2, 1000, 0)]
    return [*equal, *unequal, *near, Setting(2, None, 0)]


def quick() -> list[Setting]:
    """A few settings for a quick look: two minutes."""
    return [Setting(2, None, 0), Setting(2, 100, 1000), Setting(2, 1000, 5000)]


@dataclass(frozen=True)
class Program:
    """A program of `parallel.py`, and the network it runs on."""

    setting: Setting
    kind: str
    # The rank that computes everything twice.
    slow: int | None = None

    @property
    def job(self) -> tuple[str, int | None]:
        """Key of the program's result for any method: the overlapping ring gathers the same keys and values."""
        return ("sequence" if self.kind == "overlap" else self.kind, self.slow)

    @property
    def name(self) -> str:
        return self.kind + (f", rank {self.slow} at half speed" if self.slow is not None else "")


def programs() -> list[Program]:
    networks = [
        Setting(ranks, mbps, latency) for mbps, latency in ((100, 1000), (300, 5000), (1000, 1000)) for ranks in (2, 4)
    ]
    even = [Program(network, kind) for network in networks for kind in ("tensor", "pipeline", "sequence", "overlap")]
    return even + [Program(networks[0], kind, slow=1) for kind in ("tensor", "overlap")]
