"""Operators on CPU tensors, functions of C++ extensions, and files in programs with simulated GPUs."""

import json
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from harness import ONE_GPU, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

HEAD = """
import time, torch
torch.zeros(1, device="cuda")

def took(name, call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    print(name, round((time.perf_counter() - begin) * 1e3, 3), flush=True)
"""


def run(directory: Path, source: str, cluster: str = ONE_GPU) -> tuple[dict[str, float], dict[str, object]]:
    """Runs a script. Returns the milliseconds that its rank 0 prints, by name, and the report."""
    (directory / "cluster.toml").write_text(cluster)
    script = write_script(directory, HEAD + source)
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "model", "--values", "small", "--out", "out")
    done = uniference("run", *options, script, cwd=directory)
    assert done.code == 0, done.err + done.out
    report = json.loads((directory / "out" / "report.json").read_text())
    replay = uniference("replay", "out", "--json", cwd=directory)
    assert replay.code == 0, replay.err
    assert json.loads(replay.out)["digest"] == report["digest"]
    said = re.findall(r"^(?:\[0\] )?(\w+) ([\d.]+)$", done.out, re.M)
    return {name: float(figure) for name, figure in said}, report


SOURCE = """
a, b = torch.empty(1 << 28), torch.empty(1 << 28)
m, g = torch.empty(8192, 8192), torch.empty(8192, 8192, device="cuda")
took("view", lambda: a[5:].view(-1))
took("add", lambda: a.add_(b))
took("matmul", lambda: m @ m)
took("copy", lambda: g.copy_(m))
"""


def test_operators_on_the_host_take_its_processors_time(tmp_path: Path) -> None:
    """The default CPU of the GPU's server (307.2 GB/s, 7.17 TFLOPS) reads and writes 3 GiB, and carries out 2 x 8192^3 operations."""
    said, report = run(tmp_path, SOURCE)
    add, matmul = 3 * 2**30 / 307.2e9 * 1e3, 2 * 8192**3 / 7.17e12 * 1e3
    assert add < said["add"] < 2 * add
    assert matmul < said["matmul"] < 2 * matmul
    assert said["view"] < 0.1
    # Copies from pageable memory reach half of 80 % of 64 GB/s.
    assert said["copy"] == pytest.approx(2**28 / 25.6e9 * 1e3, rel=0.05)
    seconds = {row["kind"]: row["seconds"] for row in report["compute"]}  # type: ignore[union-attr, attr-defined]
    assert seconds["cpu"] == pytest.approx((said["add"] + said["matmul"]) / 1e3, rel=0.05)
    assert seconds["host"] < 1e-3


def test_ranks_of_a_server_share_its_two_processors(tmp_path: Path) -> None:
    alone = run(tmp_path, SOURCE)[0]["add"]
    four = ONE_GPU.replace("[network]", 'count = 4\nhost = "node"\nper_host = 4\n[network]')
    assert run(tmp_path, SOURCE, four)[0]["add"] == pytest.approx(2 * alone, rel=0.01)


def test_the_processor_is_a_key_of_the_cluster_file(tmp_path: Path) -> None:
    named = ONE_GPU.replace("[network]", 'host_cpu = "epyc-9654"\n[network]')
    usual, other = (run(tmp_path, SOURCE, cluster)[0]["add"] for cluster in (ONE_GPU, named))
    assert other == pytest.approx(usual * 307.2 / 460.8, rel=0.05)
    none = ONE_GPU.replace("[network]", 'host_cpu = "none"\n[network]')
    said, report = run(tmp_path, SOURCE, none)
    assert said["add"] < 0.1
    assert any("took no CPU time of their own, since `host_cpu` is unknown" in text for text in report["warnings"])  # type: ignore[attr-defined]
    (tmp_path / "cluster.toml").write_text(ONE_GPU.replace("[network]", 'host_cpu = "h200"\n[network]'))
    done = uniference("run", "--cluster", "cluster.toml", "--cuda", "script.py", cwd=tmp_path)
    assert done.code == 2
    assert "`h200-sxm-141gb` is not a CPU" in done.err
    assert "hint: name a CPU" in done.err


MODULE = """
#include <Python.h>
static PyObject* step(PyObject* self, PyObject* args) { Py_RETURN_NONE; }
static PyObject* add(PyObject* self, PyObject* args) {
  return PyObject_CallMethod(PyTuple_GetItem(args, 0), "add_", "O", PyTuple_GetItem(args, 1));
}
static PyMethodDef methods[] = {{"step", step, METH_VARARGS, ""}, {"add", add, METH_VARARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "adam", "", -1, methods};
PyMODINIT_FUNC PyInit_adam(void) { return PyModule_Create(&module); }
"""


def test_functions_of_extensions_are_costed_by_their_tensors(tmp_path: Path) -> None:
    """An optimizer step reads and writes 4 tensors of 512 MiB each at 307.2 GB/s. An operator of a function is charged once."""
    (tmp_path / "adam.c").write_text(MODULE)
    include = sysconfig.get_path("include")
    command = ["cc", "-shared", "-fPIC", f"-I{include}", "-o", str(tmp_path / "adam.so"), str(tmp_path / "adam.c")]
    subprocess.run(command, check=True)
    said, report = run(
        tmp_path,
        f"""
import torch.utils.cpp_extension as extensions
# As `load` and `load_inline` do, once they have compiled.
adam = extensions._import_module_from_library("adam", {str(tmp_path)!r}, True)
state = [torch.empty(1 << 27) for _ in range(4)]
took("step", lambda: adam.step(1, 1e-3, *state))
on_gpu = torch.empty(1 << 27, device="cuda")
took("mixed", lambda: adam.step(1, 1e-3, on_gpu, *state))
took("operator", lambda: state[0].add_(state[1]))
took("function", lambda: adam.add(state[0], state[1]))
""",
    )
    assert said["step"] == pytest.approx(2 * 4 * 2**29 / 307.2e9 * 1e3, rel=0.05)
    assert said["mixed"] == pytest.approx(said["step"], rel=0.01)
    assert said["function"] == pytest.approx(said["operator"], rel=0.01)
    assert any("function_of_extension" in text for text in report["warnings"])  # type: ignore[attr-defined]


def test_files_are_warned_about(tmp_path: Path) -> None:
    _, report = run(tmp_path, 'torch.save(torch.ones(8), "x.pt")\ntorch.load("x.pt")\n')
    (warning,) = [text for text in report["warnings"] if "torch.save" in text]  # type: ignore[attr-defined]
    assert "none for files" in warning


def test_buffers_in_memory_are_not_warned_about(tmp_path: Path) -> None:
    source = "import io\nf = io.BytesIO()\ntorch.save(torch.ones(8), f)\nf.seek(0)\ntorch.load(f=f)\n"
    _, report = run(tmp_path, source)
    assert not any("torch.save" in text for text in report["warnings"])  # type: ignore[attr-defined]
