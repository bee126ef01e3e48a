"""NVIDIA's mathematical libraries on simulated GPUs: a call of torch's runs to its end, or its error names the missing
function."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import uniference, write_script

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU: none is simulated"),
    pytest.mark.skipif(torch.version.cuda is None, reason="this build of torch has no CUDA"),
]

CLUSTER = """
backend = "nccl"
[[device]]
name = "gpu"
model = "h100-sxm"
count = 1
host = "node"
[network]
"""

# Each probe is a few statements. No values are computed, so no probe may depend on values.
PROBES = {
    **{
        f"matmul {kind}": f"""
            a, b = ones(8, 16, kind=torch.{kind}).requires_grad_(), ones(16, 4, kind=torch.{kind})
            (a @ b).sum().abs().backward()
            torch.mv(b, b[0]), torch.dot(b[0], b[0]), torch.bmm(b[None], b.T[None].contiguous())
            torch.baddbmm(ones(3, 4, 6, kind=b.dtype), ones(3, 4, 5, kind=b.dtype), ones(3, 5, 6, kind=b.dtype))
        """
        for kind in ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
    },
    "int8": "torch._int_mm(ones(32, 32, kind=torch.int8), ones(32, 32, kind=torch.int8))",
    "fp8": """
        a, b = ones(32, 64).to(torch.float8_e4m3fn), ones(16, 64).to(torch.float8_e4m3fn).t()
        torch._scaled_mm(a, b, scale_a=ones(()), scale_b=ones(()), out_dtype=torch.bfloat16)
        torch._scaled_mm(a, b, scale_a=ones(32, 1), scale_b=ones(1, 16), out_dtype=torch.bfloat16)
    """,
    "grouped": """
        ends = torch.tensor([16, 32], device="cuda", dtype=torch.int32)
        torch._grouped_mm(ones(32, 16, kind=torch.bfloat16), ones(2, 16, 16, kind=torch.bfloat16), offs=ends)
    """,
    "epilogues": """
        for kind in (torch.float32, torch.bfloat16):
            F.linear(ones(32, 16, kind=kind), ones(64, 16, kind=kind), ones(64, kind=kind))
        for gelu in (False, True):
            torch._addmm_activation(ones(64), ones(32, 16), ones(16, 64), use_gelu=gelu)
    """,
    **{
        f"conv{d}d": f"""
            for kind, torch.backends.cudnn.benchmark in ((torch.float32, False), (torch.bfloat16, True)):
                layer, x = nn.Conv{d}d(8, 16, 3).to("cuda", kind), ones(2, 8, *[12] * {d}, kind=kind).requires_grad_()
                layer(x).sum().backward()
                assert x.grad.shape == x.shape and layer.weight.grad.shape == layer.weight.shape
            nn.ConvTranspose{d}d(8, 16, 3).to("cuda")(ones(2, 8, *[12] * {d})).sum().backward()
        """
        for d in (1, 2, 3)
    },
    "fused convolution": """
        torch.cudnn_convolution_relu(ones(2, 8, 12, 12), ones(16, 8, 3, 3), ones(16), (1, 1), (0, 0), (1, 1), 1)
        x = ones(2, 8, 12, 12, kind=torch.bfloat16).to(memory_format=torch.channels_last)
        nn.Conv2d(8, 16, 3).to("cuda", x.dtype, memory_format=torch.channels_last)(x).sum().backward()
    """,
    "batch norm": """
        layer = nn.BatchNorm2d(8).to("cuda")
        layer(ones(2, 8, 12, 12).requires_grad_()).sum().backward()
        layer.eval()(ones(2, 8, 12, 12))
    """,
    **{
        f"attention {name}": f"""
            from torch.nn.attention import SDPBackend, sdpa_kernel
            for causal in (False, True):
                q, k, v = (ones(2, 4, 128, 64, kind=torch.bfloat16).requires_grad_() for _ in range(3))
                with sdpa_kernel(SDPBackend.{name}):
                    F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()
                assert q.grad.shape == q.shape
        """
        for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
    },
    **{
        f"recurrent {name}": f"""
            layer, x = nn.{name}(10, 20, 2, bidirectional=True, dropout=0.5).to("cuda"), ones(5, 3, 10).requires_grad_()
            y = layer(x)[0]
            y.sum().backward()
            assert y.shape == (5, 3, 40) and x.grad.shape == x.shape
            assert all(p.grad.shape == p.shape for p in layer.parameters())
        """
        for name in ("LSTM", "GRU", "RNN")
    },
    "recurrent projection": """
        nn.LSTM(10, 20, 2, proj_size=5).to("cuda")(ones(5, 3, 10))[0].sum().backward()
        packed = nn.utils.rnn.pack_padded_sequence(ones(5, 3, 10), [5, 3, 2])
        nn.LSTM(10, 20).to("cuda")(packed)[0].data.sum().backward()
    """,
    "fft": """
        torch.fft.fft(ones(8, 64)), torch.fft.irfft2(torch.fft.rfft2(ones(4, 32, 32)))
        assert torch.stft(ones(1000), 64, return_complex=True).shape == (33, 63)
    """,
    "svd": """
        for a in matrices():
            torch.linalg.svd(a)
        for driver in ("gesvd", "gesvdj", "gesvda"):
            torch.linalg.svd(ones(8, 4), driver=driver)
    """,
    "qr": "for a in matrices(): torch.linalg.qr(a); torch.ormqr(a, ones(*a.shape[:-1], kind=a.dtype), a)",
    "cholesky": "for a in matrices(): torch.linalg.cholesky_ex(a); torch.cholesky_solve(a, a); torch.cholesky_inverse(a)",
    "inverse": "for a in matrices(): torch.linalg.inv_ex(a); torch.linalg.solve_ex(a, a)",
    "lu": "for a in matrices(): torch.linalg.lu_factor_ex(a); torch.linalg.ldl_factor_ex(a)",
    "eigenvalues": "for a in matrices(): torch.linalg.eigh(a); torch.linalg.eigvalsh(torch.eye(600, device='cuda'))",
    "triangular": "for a in matrices(): torch.linalg.solve_triangular(a, a, upper=True)",
    "sparse products": """
        places = torch.tensor([[0, 1, 2], [2, 0, 1]], device="cuda")
        torch.sparse.mm(torch.sparse_coo_tensor(places, ones(3), (3, 3)), ones(3, 4))
        sparse() @ ones(3, 4), sparse() @ ones(3), torch.sparse.sampled_addmm(sparse(), ones(3, 3), ones(3, 3))
        torch.triangular_solve(ones(3, 2), sparse())
    """,
    # The size of the result depends on the positions of elements: in the first matrix at (0, 2), (1, 0) and (2, 1).
    "sparse times sparse": """
        a, b = sparse(kind=torch.int32), sparse([0, 2, 2, 3], [0, 2, 2], torch.int32)
        assert (a @ a).col_indices().tolist() == [1, 2, 0]
        total = torch.add(a, b)
        assert total.crow_indices().tolist() == [0, 2, 3, 5] and total.col_indices().tolist() == [0, 2, 0, 1, 2]
    """,
    "semi-structured": """
        from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured
        SparseSemiStructuredTensor._FORCE_CUTLASS = False
        a = to_sparse_semi_structured(ones(128, 128, kind=torch.float16))
        assert torch.mm(a, ones(128, 64, kind=torch.float16)).shape == (128, 64)
    """,
    "ctc": """
        lengths = [torch.full((4,), n, dtype=torch.int32) for n in (50, 10)]
        logits = ones(50, 4, 20).requires_grad_()
        F.ctc_loss(logits.log_softmax(2), torch.ones(4, 10, dtype=torch.int32), *lengths).backward()
    """,
    "grid": "F.grid_sample(ones(2, 3, 8, 8), F.affine_grid(ones(2, 2, 3), (2, 3, 8, 8), align_corners=False), align_corners=False)",
    "compiled at run time": """
        torch.special.bessel_j0(ones(4)), torch.lcm(ones(4, kind=torch.int32), ones(4, kind=torch.int32))
    """,
    "profiler": """
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            ones(8, 8) @ ones(8, 8)
        assert "aten::mm" in profiled.key_averages().table()
    """,
    "direct storage": "torch.cuda.gds.GdsFile(os.path.abspath(__file__) + '.gds', os.O_CREAT | os.O_RDWR)",
}

# Missing functions in the errors of the probes that fail.
MISSING = {
    "direct storage": "cuFileHandleRegister",
}

START = """
import json, os, sys, textwrap, torch
from torch import nn
from torch.nn import functional as F

def ones(*sizes, kind=torch.float32):
    return torch.ones(*sizes, device="cuda", dtype=kind)

def matrices():
    for kind in (torch.float32, torch.float64, torch.complex64):
        yield torch.eye(8, device="cuda", dtype=kind)
        yield torch.eye(8, device="cuda", dtype=kind).repeat(3, 1, 1)

def sparse(offsets=(0, 1, 2, 3), columns=(2, 0, 1), kind=torch.int64):
    offsets, columns = (torch.tensor(list, device="cuda", dtype=kind) for list in (offsets, columns))
    return torch.sparse_csr_tensor(offsets, columns, ones(3), size=(3, 3))

outcomes = {}
for name, source in probes.items():
    # Nothing is computed: what is looked at on the way (whether a factorisation failed) is zero where memory was never written to.
    torch.cuda.empty_cache()
    try:
        exec(textwrap.dedent(source), globals() | {})
        torch.cuda.synchronize()
        outcomes[name] = "ran"
    except Exception as error:
        outcomes[name] = f"{type(error).__name__}: {error}"
print("outcomes", json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    """The outcome of each probe, and the run's warnings."""
    folder = tmp_path_factory.mktemp("phantom")
    (folder / "cluster.toml").write_text(CLUSTER)
    script = write_script(folder, f"probes = {PROBES!r}\n{START}")
    command = ("run", "--cuda", "--cluster", "cluster.toml", "--compute", "none", "--out", "out", script)
    done = uniference(*command, cwd=folder)
    assert done.code == 0, done.err
    # The report names missing functions, too.
    complaints = re.findall(r"^warning: (rank 0: .* is not implemented for simulated GPUs.*)$", done.err, re.MULTILINE)
    assert complaints
    assert set(complaints) <= set(json.loads((folder / "out" / "report.json").read_text())["warnings"])
    (line,) = (line for line in done.out.splitlines() if "outcomes {" in line)
    return json.loads(line.split("outcomes ", 1)[1]), done.err


@pytest.mark.parametrize("name", PROBES)
def test_a_call_runs_or_names_what_is_missing(done: tuple[dict[str, str], str], name: str) -> None:
    outcomes, complaints = done
    missing = MISSING.get(name)
    if missing is None:
        assert outcomes[name] == "ran"
    else:
        assert outcomes[name].startswith("RuntimeError: ")
        assert f"{missing} is not implemented for simulated GPUs" in complaints


def test_the_tables_of_names_are_those_of_the_packages() -> None:
    script = Path(__file__).parents[2] / "scripts/phantom_symbols.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_doctor_finds_all_functions_that_torch_binds(tmp_path: Path) -> None:
    doctor = uniference("doctor", cwd=tmp_path)
    assert doctor.code == 0, doctor.out
    assert "ok       simulated GPUs all " in doctor.out


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_a_torch_that_binds_what_is_missing_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "torch" / "lib" / "libtorch_cuda.so"
    library.parent.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    source = 'extern "C" int cudaMalloc(), cudaNotThere(); int call() { return cudaMalloc() + cudaNotThere(); }'
    compiler = ["g++", "-x", "c++", "-shared", "-fPIC", "-", "-o", library]
    subprocess.run(compiler, input=source, text=True, check=True)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    what = "1 of 2 functions of CUDA that PyTorch binds are missing: cudaNotThere"
    doctor = uniference("doctor", cwd=tmp_path, env={"PYTHONPATH": path})
    assert doctor.code == 2
    assert f"problem  simulated GPUs {what}\n" in doctor.out
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    script = write_script(tmp_path, "print('not reached')\n")
    command = ("run", "--cuda", "--cluster", "cluster.toml", script)
    done = uniference(*command, cwd=tmp_path, env={"PYTHONPATH": path})
    assert done.code == 2, done.err
    assert f"error: GPUs cannot be simulated: {what}\nhint: install a supported version of PyTorch" in done.err
    assert "not reached" not in done.out
