"""Runs of scripts on one simulated GPU, with separate caches of compilers."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness import ONE_GPU, Done, uniference, write_script


def run(
    directory: Path, body: str, kernels: str = "", *options: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Done:
    (directory / "cluster.toml").write_text(ONE_GPU + kernels)
    script = write_script(directory, "import torch\n" + body)
    caches = {"TRITON_CACHE_DIR": str(directory / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}
    arguments = ("run", "--cluster", "cluster.toml", "--cuda", "--out", "out", *options, script)
    return uniference(*arguments, cwd=directory, env={**caches, **environment}, cold=True)


def checked(directory: Path, body: str, kernels: str = "", *options: str) -> dict[str, Any]:
    done = run(directory, body, kernels, *options)
    assert done.code == 0, done.err + done.out
    report: dict[str, Any] = json.loads((directory / "out" / "report.json").read_text())
    return report


def kernel_seconds(report: dict[str, Any], kind: str) -> float:
    return float(sum(row["seconds"] for row in report["compute"] if row["kind"] == kind))
