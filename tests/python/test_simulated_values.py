"""Values of operators on simulated GPUs: they are the CPU's, whichever library a GPU would use."""

import json
import re
from pathlib import Path

import pytest
import torch
from harness import ONE_GPU, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")


COMPARE = """
import torch, torch.nn.functional as F
from torch import nn

torch.manual_seed(0)

def close(a, b, what):
    assert torch.allclose(a.cpu().float(), b.float(), rtol=2e-2, atol=2e-2), (what, a.cpu(), b)

def same(what, function, *tensors):
    there = function(*(t.cuda() if isinstance(t, torch.Tensor) else t for t in tensors))
    here = function(*tensors)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (there, here)), strict=True):
        assert a.device.type == "cuda", what
        close(a, b, what)

def trained(what, module, *inputs):
    import copy
    there, here = copy.deepcopy(module).cuda(), module
    outputs = []
    for m, where in ((there, "cuda"), (here, "cpu")):
        given = [t.detach().to(where).requires_grad_(t.is_floating_point()) for t in inputs]
        out = m(*given)
        out = out[0] if isinstance(out, tuple) else out
        out.float().square().sum().backward()
        outputs.append([out] + [g.grad for g in given if g.grad is not None] + [p.grad for p in m.parameters()])
    for a, b in zip(*outputs, strict=True):
        close(a, b, what)
"""


def run(directory: Path, body: str, *options: str) -> str:
    (directory / "cluster.toml").write_text(ONE_GPU)
    script = write_script(directory, COMPARE + body)
    cluster = ("--cluster", "cluster.toml")
    done = uniference("run", *cluster, "--cuda", "--compute", "none", *options, script, cwd=directory)
    assert done.code == 0, done.err + done.out
    return done.out


def test_products_reductions_and_elements(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
a, b = torch.randn(16, 24), torch.randn(24, 8)
same("mm", torch.mm, a, b)
same("add", lambda x: x + 1, a)
same("sum", lambda x: x.sum(0), a)
same("softmax", lambda x: x.softmax(-1), a)
half = lambda function: lambda x: function(x.half(), -1, dtype=torch.float32)
same("softmax of half precision", half(torch.softmax), a)
same("log_softmax of half precision", half(torch.log_softmax), a)
same("sort", lambda x: x.sort(dim=-1), a)
same("topk", lambda x: x.topk(3), a)
same("gather", lambda x: x.gather(1, torch.zeros(16, 2, dtype=torch.long, device=x.device)), a)
same("cat", lambda x: torch.cat([x, x.flip(0)]), a)
same("transpose", lambda x: (x.t() @ x).tril(), a)
same("bf16", lambda x: (x.bfloat16() @ x.bfloat16().t()).float(), a)
same("bmm", torch.bmm, torch.randn(3, 4, 5), torch.randn(3, 5, 6))
x = torch.zeros(4, device="cuda"); x[1:3] += 2; x.mul_(3)
assert x.tolist() == [0, 6, 6, 0]
assert x.max().item() == 6 and bool((x > 0).any())
""",
    )


def test_sizes_that_depend_on_values(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
x = torch.tensor([3, 0, 3, 5], device="cuda")
assert x.nonzero().flatten().tolist() == [0, 2, 3]
assert x[x > 2].tolist() == [3, 3, 5]
assert x.unique().tolist() == [0, 3, 5]
assert x.bincount().tolist() == [1, 0, 0, 2, 0, 1]
assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1)
assert x.repeat_interleave(torch.tensor([1, 0, 2, 1], device="cuda")).tolist() == [3, 3, 3, 5]
x[x == 3] = 7
assert x.tolist() == [7, 0, 7, 5]
""",
    )


def test_what_is_too_large_is_not_computed(tmp_path: Path) -> None:
    """A GEMM of so many elements would take minutes on the host. Small tensors are computed, although they come from
    the same allocator."""
    run(
        tmp_path,
        """
large = torch.randn(1 << 15, 1 << 15, device="cuda", dtype=torch.bfloat16)
assert large.is_cuda
for _ in range(20):
    large = large @ large
assert large.shape == (1 << 15, 1 << 15) and large.is_cuda
x = torch.arange(6, device="cuda").view(2, 3).float()
assert (x @ x.t()).tolist() == [[5, 14], [14, 50]]
assert x[x > 3].tolist() == [4, 5]
""",
        "--values",
        "small",
    )


def test_layers_forward_and_backward(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
class Half(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, x):
        return self.function(x.half(), -1, dtype=torch.float32)
trained("softmax of half precision", Half(torch.softmax), torch.randn(5, 8))
trained("log_softmax of half precision", Half(torch.log_softmax), torch.randn(5, 8))
trained("linear", nn.Linear(8, 4), torch.randn(5, 8))
trained("convolution", nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 8, 8))
trained("layer norm", nn.LayerNorm(8), torch.randn(5, 8))
trained("layer norm of half precision", nn.LayerNorm(8).bfloat16(), torch.randn(5, 8).bfloat16())
trained("group norm of half precision", nn.GroupNorm(2, 4).bfloat16(), torch.randn(3, 4, 5).bfloat16())
trained("rms norm", nn.RMSNorm(8), torch.randn(5, 8))
trained("batch norm", nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5))
trained("embedding", nn.Embedding(10, 4), torch.tensor([1, 2, 2, 9]))
trained("lstm", nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True), torch.randn(3, 7, 6))
trained("gru", nn.GRU(6, 5), torch.randn(7, 3, 6))
trained("transformer", nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), torch.randn(2, 6, 16))
""",
    )


@pytest.mark.parametrize("kernel", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"])
def test_attention(kernel: str, tmp_path: Path) -> None:
    run(
        tmp_path,
        f"""
from torch.nn.attention import sdpa_kernel, SDPBackend
for causal in (False, True):
    q, k, v = (torch.randn(2, 4, 32, 16, dtype=torch.float16) for _ in range(3))
    results = []
    for where in ("cuda", "cpu"):
        given = [t.detach().to(where).requires_grad_() for t in (q, k, v)]
        with sdpa_kernel([SDPBackend.{kernel}] if where == "cuda" else [SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(*given, is_causal=causal)
        out.float().square().sum().backward()
        results.append([out] + [t.grad for t in given])
    for a, b in zip(*results):
        close(a, b, ("{kernel}", causal))
""",
    )


def test_random_numbers_follow_the_generators_state(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
torch.cuda.manual_seed(3)
state = torch.cuda.get_rng_state()
a, b = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
assert not torch.equal(a, b) and 0.1 < a.std() < 3
torch.cuda.set_rng_state(state)
assert torch.equal(torch.randn(8, device="cuda"), a)
mask = F.dropout(torch.ones(1000, device="cuda"), 0.25)
assert 0.6 < (mask > 0).float().mean() < 0.9
generator = torch.Generator("cuda").manual_seed(3)
assert torch.equal(torch.randn(8, device="cuda", generator=generator), a)
""",
    )


def test_dropout_is_the_same_in_the_backward_pass(tmp_path: Path) -> None:
    """Compares gradients with differences of the loss, with the same random numbers drawn again."""
    run(
        tmp_path,
        """
from torch.nn.attention import sdpa_kernel, SDPBackend

def check(what, x, function):
    def loss(x):
        torch.cuda.manual_seed(5)
        return function(x).double().square().sum()
    x = x.cuda().requires_grad_()
    loss(x).backward()
    direction = torch.randn(x.shape).cuda()
    with torch.no_grad():
        difference = (loss(x + 1e-2 * direction) - loss(x - 1e-2 * direction)) / 2e-2
    expected = (x.grad * direction).sum().double()
    assert abs(difference - expected) < 0.02 * abs(expected) + 0.02, (what, difference, expected)

lstm = nn.LSTM(6, 5, num_layers=3, dropout=0.5).cuda()
check("lstm", torch.randn(7, 3, 6), lambda x: lstm(x)[0])
check("dropout", torch.randn(50), lambda x: F.dropout(x, 0.5))

def attention(x):
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
check("attention", torch.randn(2, 3, 20, 8), attention)
""",
    )


def test_linear_algebra_and_sparse_tensors(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
m = torch.randn(6, 6, dtype=torch.float64); spd = m @ m.t() + 6 * torch.eye(6, dtype=torch.float64)
same("svd", torch.linalg.svdvals, m)
same("qr", lambda x: torch.linalg.qr(x)[1].abs(), m)
same("cholesky", torch.linalg.cholesky, spd)
same("inverse", torch.linalg.inv, spd)
same("solve", torch.linalg.solve, spd, m)
same("eigenvalues", torch.linalg.eigvalsh, spd)
same("fft", lambda x: torch.fft.rfft(x).abs(), m)
s = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0]), (2, 3))
close(torch.sparse.mm(s.cuda(), torch.ones(3, 2).cuda()), torch.sparse.mm(s, torch.ones(3, 2)), "sparse")
""",
    )


# Memory with earlier contents, so that no result is right only because the memory is new.
SPARSE = """
used = [torch.full((size,), -1, device="cuda") for size in (2, 4, 8, 64, 512)]
del used

def sparse(repeated=1):
    return torch.sparse_coo_tensor(torch.tensor([[0, repeated, 1], [2, 0, 0]]), torch.tensor([3.0, 4.0, 5.0]), (2, 3))

def matrices(x):
    ones = torch.ones(3, 2, device=x.device)
    both = x.coalesce()
    return x.to_dense(), both.values(), both.indices(), (x + x).to_dense(), (2 * x).to_dense(), x @ ones, torch.sparse.sum(x)

same("in any order", matrices, sparse())
same("twice in a place", matrices, sparse(repeated=0))
same("added", lambda x: torch.zeros(2, 3, device=x.device).add_(x), sparse())
dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
same("made", lambda x: (x.to_sparse().indices(), x.to_sparse().values(), x.to_sparse().to_dense()), dense)

def compressed(x):
    rows = x.to_sparse_csr()
    return rows.crow_indices(), rows.col_indices(), rows.values(), rows @ x, rows.to_dense()

same("compressed", compressed, dense)

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)

    def forward(self, x):
        return self.table(x)

def stepped(where):
    torch.manual_seed(1)
    module = Sum().to(where)
    optimizer = torch.optim.SparseAdam(module.parameters(), lr=0.1)
    for step in range(4):
        # Zeros in place, and gradients that are added to others.
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for tokens in [1, 1, 3], [2, step, 9]:
            module(torch.tensor(tokens, device=where)).square().sum().backward()
        assert module.table.weight.grad.is_sparse
        optimizer.step()
    return module.table.weight.detach()

close(stepped("cuda"), stepped("cpu"), "optimizer")

from torch.sparse import to_sparse_semi_structured

pairs = torch.tensor([0.0, 0.0, 1.0, 1.0]).tile((128, 32)).half().cuda()
assert to_sparse_semi_structured(pairs).shape == (128, 128)
"""


def test_sparse_tensors_have_the_values_of_the_processors(tmp_path: Path) -> None:
    """Only the operator of `to_sparse_semi_structured` has no values."""
    run(tmp_path, SPARSE, "--out", "out")
    (warning,) = missing_values(tmp_path)
    assert "the values of aten::_cslt_compress are not computed on simulated GPUs: " in warning


def test_optimizers_and_scaled_gradients(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
def train(where, fused):
    torch.manual_seed(1)
    model = nn.Linear(4, 4).to(where)
    adam = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused, foreach=None if fused is None else False)
    scaler = torch.amp.GradScaler(where, enabled=where == "cuda")
    for _ in range(3):
        with torch.autocast(where, torch.float16 if where == "cuda" else torch.bfloat16, enabled=False):
            loss = model(torch.ones(2, 4, device=where)).square().sum()
        adam.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
    return model.weight
for fused in (True, None):
    close(train("cuda", fused), train("cpu", fused), ("adam", fused))
""",
    )


ABSENT = """
held = torch.full((4000,), 5.0, device="cuda")
del held
large = torch.ones(1 << 20, device="cuda")
# Small, and of what is not there: zeros, whatever was in its memory before.
derived = large[:4000] * 2
assert derived.cpu().eq(0).all()
# What is computed from values is there, whatever else the program has.
assert (torch.arange(5, device="cuda") * 2).tolist() == [0, 2, 4, 6, 8]
picture = torch.cuda.CUDAGraph()
kept = torch.full((10,), 7.0, device="cuda")
with torch.cuda.graph(picture):
    kept.copy_(large[:10] + 1)
picture.replay()
# One more than zero, as a launch outside of a graph would find.
assert kept.tolist() == [1.0] * 10
print("sum", derived.sum().item())
"""


def test_what_is_not_computed_reads_as_zero_and_is_reported(tmp_path: Path) -> None:
    out = run(tmp_path, ABSENT, "--values", "small", "--out", "out")
    assert "sum 0.0" in out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (warning,) = [warning for warning in report["warnings"] if "values that were not computed" in warning]
    assert "script.py:" in warning


def test_what_a_factory_is_asked_for_is_not_how_large_its_result_is(tmp_path: Path) -> None:
    body = """
for device in ("cpu", "cuda"):
    torch.manual_seed(0)
    made = [
        torch.randint(65530, 65537, (4,), device=device) - 65530,
        torch.arange(69998, 70002, device=device) - 69998,
        torch.arange(0, 280000, 70000, device=device) // 70000,
        torch.linspace(0, 99999, 4, dtype=torch.int64, device=device) // 33333,
        torch.full((4,), 70000, device=device) - 69999,
        torch.scalar_tensor(70001, device=device)[None] - 70000,
        torch.tril_indices(2, 2, device=device)[0],
        torch.eye(3, device=device).sum(0),
        torch.randint(5000, 5003, (4,), dtype=torch.float32, device=device) - 4999,
    ]
    values = [each.tolist() for each in made]
    assert all(0 <= value < 7 for value in values[0]), values
    assert values[1:8] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [1, 1, 1, 1], [1], [0, 1, 1], [1, 1, 1]], values
    assert all(1 <= value < 4 for value in values[8]), values
    # As many integers as steer a program, and no more floats than are said.
    assert torch.zeros(5000, dtype=torch.int32, device=device).add_(1)[4999].item() == 1
    assert torch.eye(65, device=device)[0, 0].item() == 0
"""
    run(tmp_path, body, "--values", "small", "--out", "out")


def test_where_nothing_is_missing_nothing_is_reported(tmp_path: Path) -> None:
    body = "x = torch.arange(6, device='cuda').float()\nprint('sum', (x @ x).item(), (torch.ones(1 << 20, device='cuda') * 2).shape)\n"
    assert "sum 55.0" in run(tmp_path, body, "--values", "small", "--out", "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert not [warning for warning in report["warnings"] if "not computed" in warning]


def test_received_data_that_is_not_there_is_zero(tmp_path: Path) -> None:
    body = """
import torch.distributed as dist
dist.init_process_group("nccl")
small, large = (torch.ones(size, device="cuda") for size in (10, 1 << 20))
dist.all_reduce(small)
dist.all_reduce(large)
assert small.tolist() == [2.0] * 10
print("first", large[0].item())
"""
    (tmp_path / "cluster.toml").write_text(ONE_GPU.replace('name = "gpu"', 'name = "gpu"\ncount = 2'))
    script = write_script(tmp_path, COMPARE + body)
    options = ("--cluster", "cluster.toml", "--compute", "none", "--values", "small", "--out", "out")
    done = uniference("run", *options, script, cwd=tmp_path)
    assert done.code == 0, done.err + done.out
    assert "first 0.0" in done.out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [warning for warning in report["warnings"] if "values that were not computed" in warning]


ASSERTIONS = """
rows, wrong = torch.ones(4, 8).cuda(), torch.tensor([1, 4]).cuda()

def look_up(): return F.embedding(wrong, rows)
def index(): return rows[wrong]
def put(): rows[wrong] = 2.0
def select(): return rows.index_select(0, wrong)
def add(): return rows.index_add(0, wrong, torch.ones(2, 8).cuda())
def gather(): return rows.gather(0, wrong[:, None])
def scatter(): return rows.scatter(0, wrong[:, None], 1.0)
def loss(): return F.cross_entropy(rows[:2, :4], wrong)
def take(): return rows.take(wrong + 29)

for function in (look_up, index, put, select, add, gather, scatter, loss, take):
    try:
        function()
    except torch.AcceleratorError as error:
        assert error.error_code == 710 and "device-side assert triggered" in str(error) and "out of" in str(error), error
    else:
        raise AssertionError(function.__name__ + " does not assert")
# What is within bounds is computed as before, from the end, too.
same("from the end", lambda x, i: x[i], torch.ones(4, 8), torch.tensor([-1, -4]))
same("ignored", lambda x, i: F.cross_entropy(x, i), torch.ones(2, 4), torch.tensor([-100, 3]))
"""


def test_an_index_out_of_range_is_an_error_as_on_a_gpu(tmp_path: Path) -> None:
    run(tmp_path, ASSERTIONS)


COMBINED = """
# What autocast hands on to cuDNN, and cells of which GPUs have kernels of their own.
x, h = torch.randn(5, 3, 8), torch.randn(3, 8)
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    for options in ({}, {"bidirectional": True}, {"bias": False}, {"num_layers": 2}):
        network = kind(8, 16, **options)
        expected = network(x)[0]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = network.cuda()(x.cuda())[0]
        close(found, expected.detach(), (kind, options))
        found.float().sum().backward()
        assert all(p.grad.abs().sum() > 0 for p in network.parameters()), (kind, options)
for kind in (nn.LSTMCell, nn.GRUCell):
    for bias in (True, False):
        trained(kind.__name__, kind(8, 8, bias=bias), h)
# The last query sees all keys.
q, k, v = (torch.randn(1, 2, n, 32).bfloat16() for n in (4, 9, 9))
mask = torch.ones(4, 9, dtype=torch.bool).tril(5)
expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
from torch.nn.attention.bias import causal_lower_right
close(F.scaled_dot_product_attention(q.cuda(), k.cuda(), v.cuda(), attn_mask=causal_lower_right(4, 9)), expected, "lower right")
# Strides are those of PyTorch's own shapes for GPUs.
vh = torch.linalg.svd(torch.randn(6, 4).cuda(), full_matrices=False).Vh
assert vh.is_contiguous()
# The bag of each index, which the CPU leaves out of a sum.
bags, expected = nn.EmbeddingBag(6, 4, mode="sum"), []
for place in ("cpu", "cuda"):
    bags.to(place).zero_grad()
    out = bags(torch.tensor([1, 2, 4, 5, 1], device=place), torch.tensor([0, 2], device=place))
    (out * torch.tensor([[1.0], [5.0]], device=place)).sum().backward()
    expected.append(bags.weight.grad.cpu().clone())
close(expected[1], expected[0], "bags")
# Nested tensors.
nested = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4) * 2], device="cuda")
assert torch.nested.to_padded_tensor(nested * 2, 0.0).sum().item() == 56
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2).eval()
words, padding = torch.randn(3, 7, 32), torch.zeros(3, 7, dtype=torch.bool)
padding[0, 5:] = padding[2, 3:] = True
with torch.no_grad():
    expected = encoder(words, src_key_padding_mask=padding)
    found = encoder.cuda()(words.cuda(), src_key_padding_mask=padding.cuda())
close(found, expected, "padded")
"""

COMPILED = """
# What the compiler writes with functions of libdevice, and with tensors of the CPU in place of numbers.
same("addcmul", torch.compile(lambda x: torch.addcmul(x, x, x, value=2.0)), torch.randn(64))
same("erfcx", torch.compile(torch.special.erfcx), torch.randn(64))

@torch.compile
def scaled(x, s):
    y = x * s
    s += 1
    return y

s = torch.tensor(2.0)
assert scaled(torch.ones(3, device="cuda"), s).tolist() == [2.0] * 3 and s.item() == 3
parameter = nn.Parameter(torch.arange(1.0, 7.0, device="cuda"))
optimizer = torch.optim.Adam([parameter], lr=0.1)
step = torch.compile(optimizer.step)
for _ in range(3):
    parameter.grad = parameter.detach().clone()
    step()
close(parameter.detach(), torch.arange(1.0, 7.0) - 0.3, "Adam")
table = torch.ones(6, device="cuda")
try:
    torch.compile(lambda i: table[i] * 2)(torch.tensor([6, 0], device="cuda"))
except torch.AcceleratorError as error:
    assert "out of bounds" in str(error), error
else:
    raise AssertionError("an index out of range")
"""


@pytest.mark.parametrize("body", [COMBINED, COMPILED], ids=["combined", "compiled"])
def test_layers_and_compiled_kernels_have_the_cpus_values(tmp_path: Path, body: str) -> None:
    run(tmp_path, body)


def test_a_kernel_whose_values_are_not_known_says_so(tmp_path: Path) -> None:
    body = """
import triton, triton.language as tl

@triton.jit
def added(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=r,r", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1))

out = torch.full((4,), -7.0, device="cuda")
added[(1,)](torch.ones(4, device="cuda"), out, 4)
assert out.tolist() == [0.0] * 4
"""
    run(tmp_path, body, "--out", "out")
    said = missing_values(tmp_path)
    assert any("triton::added are not computed" in warning for warning in said), said


def missing_values(directory: Path) -> list[str]:
    """Returns the report's warnings about values that are not computed."""
    report = json.loads((directory / "out" / "report.json").read_text())
    return [warning for warning in report["warnings"] if "not computed" in warning or "without values" in warning]


# Program that silences Python's warnings, as launchers and notebooks do. The driver prints its own warning regardless.
SILENCED = """
import warnings
warnings.simplefilter("ignore")
packed = torch._convert_weight_to_int4pack(torch.randint(0, 255, (64, 32), dtype=torch.uint8, device="cuda"), 2)
scales = torch.ones(2, 64, 2, dtype=torch.bfloat16, device="cuda")
for _ in range(3):
    result = torch._weight_int4pack_mm(torch.eye(64, dtype=torch.bfloat16, device="cuda"), packed, 32, scales)
print("sum", result.abs().sum().item())
"""


def test_missing_values_are_said_whatever_the_program_silences(tmp_path: Path) -> None:
    assert "sum 0.0" in run(tmp_path, SILENCED, "--out", "out")
    said = missing_values(tmp_path)
    line = 1 + (COMPARE + SILENCED).split("result = ")[0].count("\n")
    assert any(
        "the values of aten::_weight_int4pack_mm are not computed on simulated GPUs: " in warning
        and warning.endswith(f"script.py:{line}")
        for warning in said
    ), said
    assert any("aten::_weight_int4pack_mm (3 times, first at " in warning for warning in said), said


def test_strict_values_end_the_run_at_the_first_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(ONE_GPU)
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "none", "--strict-values")
    done = uniference("run", *options, write_script(tmp_path, COMPARE + SILENCED), cwd=tmp_path)
    assert done.code == 1, done.err + done.out
    assert "sum" not in done.out
    assert "error: the values of aten::_convert_weight_to_int4pack are not computed on simulated GPUs: " in done.err
    assert "script.py:" in done.err
    assert "(--strict-values)\nhint: " in done.err


@pytest.mark.parametrize(
    "body",
    [
        "import sys\nsys.stdout.close()\n" + SILENCED,
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {'import torch' + SILENCED!r}])\n",
    ],
    ids=["closed output", "child process"],
)
def test_strict_values_end_the_run(body: str, tmp_path: Path) -> None:
    """The program does not go on, though its standard output is closed, or a child process lacks the values."""
    (tmp_path / "cluster.toml").write_text(ONE_GPU)
    options = ("--cluster", "cluster.toml", "--cuda", "--compute", "none", "--strict-values")
    body += "sys.stderr.write('it goes on')\n"
    done = uniference("run", *options, write_script(tmp_path, COMPARE + body), cwd=tmp_path)
    assert done.code == 1, done.err + done.out
    assert "it goes on" not in done.err
    assert "error: the values of aten::_convert_weight_to_int4pack are not computed on simulated GPUs: " in done.err


def test_kernels_that_no_operator_launches_are_named(tmp_path: Path) -> None:
    body = """
import ctypes, torch.utils.cpp_extension

square = torch.cuda.jiterator._create_jit_fn("template <typename T> T square(T x) { return x * x; }")
assert square(torch.full((4,), 3.0, device="cuda")).tolist() == [0.0] * 4
# PyTorch asks for the folder of CUDA's headers, of which this kernel includes none.
torch.utils.cpp_extension.CUDA_HOME = "."
add = torch.cuda._compile_kernel('extern "C" __global__ void add(float* a) { a[threadIdx.x] += 1; }', "add")
zeros = torch.zeros(8, device="cuda")
add((1, 1, 1), (8, 1, 1), (zeros,))
driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
ptx = b".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry fill(.param .u64 out) { ret; }\\n"
assert driver.cuModuleLoadData(ctypes.byref(module), ptx) == 0
assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"fill") == 0
address = ctypes.c_void_p(zeros.data_ptr())
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
assert driver.cuLaunchKernel(function, 1, 1, 1, 8, 1, 1, 0, None, arguments, None) == 0
assert zeros.tolist() == [0.0] * 8
torch.cuda._sleep(1000)
print("done")
"""
    assert "done" in run(tmp_path, body, "--out", "out")
    said = missing_values(tmp_path)
    # `torch.cuda._sleep` launches a kernel that writes nothing, so no warning names it.
    names = [re.search(r"the values of kernel (square_|\w+)", warning) for warning in said]
    assert {name[1] for name in names if name} == {"square_", "add", "fill"}, said
    assert len(said) == 3
    assert all("are not computed on simulated GPUs: no operator launches it" in warning for warning in said)
