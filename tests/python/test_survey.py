"""The driver's examination of a program before it starts ranks, without running or importing any of it."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from harness import uniference, write_script

from uniference.program import survey

NEEDS = "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
RAISES = "raise SystemExit('it was run')\n"


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        (NEEDS, True),
        ("torch.ones(1).cuda()", True),
        ("device = f'cuda:{rank}'", True),
        ("torch.ones(1, device='cuda:1')", True),
        ("device = 'cuda' if torch.cuda.is_available() else 'cpu'", False),
        ("device = 'cuda' if dist.get_backend() == 'nccl' else 'cpu'", False),
        ("print(dist.get_backend()); torch.ones(1).cuda()", True),
        ("kind = torch.accelerator.current_accelerator() or 'cuda'", False),
        ("# cuda and nccl are only mentioned\nprint('not cuda, nccl neither')", False),
        ("dist.init_process_group('gloo')", False),
        ("cuda = 'nccl", False),
    ],
)
def test_a_program_needs_gpus_if_it_names_them_and_does_not_ask(source: str, needs: bool, tmp_path: Path) -> None:
    assert survey.needs_gpu(write_script(tmp_path, source)) is needs


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        (NEEDS, True),
        ("device = 'cuda' if torch.cuda.is_available() else 'cpu'", True),
        ("device = torch.accelerator.current_accelerator()", True),
        ("from torch import accelerator", True),
        ("from torch.accelerator import current_accelerator", True),
        ("import torch.accelerator as gpu", True),
        ("import torch as t; t.accelerator.current_accelerator()", True),
        ("if args.accelerator: train(self.accelerator.device)", False),
        ("dist.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')", True),
        ("dist.init_process_group('gloo' if dist.is_available() else None)", False),
        ("import numpy, torch, json", False),
        ("from model import Model", True),
        ("from package.sub import leaf", True),
        ("import package.sub.leaf as leaf", True),
        ("from package import plain", False),
        ("import loads.plain", True),
        ("from loads.plain import it", True),
    ],
)
def test_a_program_uses_gpus_if_it_or_a_module_beside_it_does(source: str, uses: bool, tmp_path: Path) -> None:
    (tmp_path / "package" / "sub").mkdir(parents=True)
    (tmp_path / "model.py").write_text("import torch\nuse = torch.cuda.is_available()\n")
    (tmp_path / "loads").mkdir()
    (tmp_path / "loads" / "__init__.py").write_text("import torch\nuse = torch.cuda.is_available()\n")
    (tmp_path / "loads" / "plain.py").write_text("it = 1\n")
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "other.py").write_text("import itself\nfrom .. import nothing\n")
    (tmp_path / "package" / "plain.py").write_text("from .other import it\n")
    (tmp_path / "package" / "sub" / "__init__.py").write_text("")
    (tmp_path / "package" / "sub" / "leaf.py").write_text("from ...model import use\n")
    assert survey.uses_gpu(write_script(tmp_path, source)) is uses


def test_modules_of_the_current_folder_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    main = write_script(tmp_path / "package", "from package.model import Model", "train.py")
    (tmp_path / "package" / "model.py").write_text("import torch\nuse = torch.cuda.is_available()\n")
    assert not survey.uses_gpu(main)
    monkeypatch.chdir(tmp_path)
    assert survey.uses_gpu(main)


def test_a_programs_file_is_found_without_importing_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for path in (tmp_path / "outer" / "__init__.py", package / "__init__.py"):
        path.write_text(RAISES)
    for path in (package / "__main__.py", package / "leaf.py", tmp_path / "alone.py", tmp_path / "__main__.py"):
        path.write_text(NEEDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = {
        ("outer.inner", True): package / "__main__.py",
        ("outer.inner.leaf", True): package / "leaf.py",
        ("alone", True): tmp_path / "alone.py",
        (str(tmp_path), False): tmp_path / "__main__.py",
        ("alone.py", False): Path("alone.py"),
        ("outer.missing", True): None,
        ("missing", True): None,
    }
    assert {key: survey.find(*key) for key in found} == found


def test_the_answer_is_of_the_interpreters_own_torch(tmp_path: Path) -> None:
    package(tmp_path, "2.15.0+cpu")
    script = write_script(tmp_path, NEEDS)
    done = subprocess.run(
        [sys.executable, "-P", survey.__file__, script, "script", "needed", "torch", "vllm"],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["versions"] == {"python": platform.python_version(), "torch": "2.15.0+cpu"}
    assert (answer["folder"], answer["simulates_gpus"]) == (str(tmp_path / "torch"), True)


@pytest.mark.parametrize("options", [["--cuda"], ["--backend", "nccl"], []])
def test_gpus_of_a_torch_without_cuda_are_refused(options: list[str], tmp_path: Path) -> None:
    package(tmp_path, "2.15.0+cpu")
    command = ("run", "--ranks", 1, "--compute", "none", "--out", "out", *options, write_script(tmp_path, NEEDS))
    done = uniference(*command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, cold=True)
    assert done.code == 2
    assert "error: GPUs cannot be simulated: the installed PyTorch, 2.15.0+cpu, was built without CUDA" in done.err
    assert "pip install --force-reinstall --index-url https://pypi.org/simple torch==2.15.0" in done.err
    assert "--no-cuda" in done.err


def package(directory: Path, version: str) -> None:
    """A package called torch, with libraries without CUDA."""
    library = directory / "torch" / "lib"
    library.mkdir(parents=True)
    (directory / "torch" / "__init__.py").write_text(RAISES)
    metadata = directory / f"torch-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
