"""Attention over packed sequences on simulated GPUs: values and gradients are those of each sequence computed by itself."""

from pathlib import Path

import pytest
import torch
from harness import ONE_GPU, uniference, write_script

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")


REFERENCE = """
import torch, torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend

torch.manual_seed(0)

def close(found, expected, what):
    torch.testing.assert_close(found.cpu().float(), expected.float(), rtol=2e-2, atol=2e-2, msg=lambda said: f"{what}: {said}")

# (tokens, heads, width) of one sequence; the last query stands at the last key, or the first at the first.
def alone(q, k, v, left=-1, right=-1, bias=None, from_the_last=True):
    queries, keys = len(q), len(k)
    ahead = torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries if from_the_last else 0)
    hidden = torch.zeros(queries, keys, dtype=torch.bool)
    hidden |= (ahead > right) if right >= 0 else hidden
    hidden |= (-ahead > left) if left >= 0 else hidden
    q, k, v = (t.float().transpose(0, 1) for t in (q, k, v))
    k, v = (t.repeat_interleave(len(q) // len(t), 0) for t in (k, v))
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + (0 if bias is None else bias)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).nan_to_num(0)
    return (weights @ v).transpose(0, 1)

def packed(q, k, v, of_queries, of_keys, **options):
    parts = zip(of_queries[:-1], of_queries[1:], of_keys[:-1], of_keys[1:])
    return torch.cat([alone(q[a:b], k[c:d], v[c:d], **options) for a, b, c, d in parts])

def borders(numbers):
    return torch.tensor(numbers, dtype=torch.int32)

# Outputs and gradients of both, by what computes them on the GPU and here.
def compare(what, there, here, *tensors):
    gpu, cpu = ([t.detach().to(place).requires_grad_() for t in tensors] for place in ("cuda", "cpu"))
    found, expected = there(*gpu), here(*cpu)
    close(found, expected, what)
    for out in (found, expected):
        (out.float() * torch.linspace(-1, 1, out.shape[-1], device=out.device)).sum().backward()
    for a, b, name in zip(gpu, cpu, "qkvb"):
        close(a.grad, b.grad, f"gradient of {name}, {what}")
"""


def run(directory: Path, body: str) -> str:
    (directory / "cluster.toml").write_text(ONE_GPU)
    script = write_script(directory, REFERENCE + body)
    done = uniference("run", "--cluster", "cluster.toml", "--cuda", "--compute", "none", script, cwd=directory)
    assert done.code == 0, done.err + done.out
    assert "are not computed" not in done.err + done.out
    return done.out


def test_sequences_behind_each_other(tmp_path: Path) -> None:
    """With FlashAttention and cuDNN, if `varlen_attn` supports it."""
    run(
        tmp_path,
        """
from torch.nn.attention.varlen import varlen_attn
ends = [0, 3, 133, 140]
q = torch.randn(140, 4, 32).bfloat16()
for heads in (4, 2):
    k, v = torch.randn(2, 140, heads, 32).bfloat16()
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for window in ((-1, -1), (-1, 0), (5, 0), (4, 2)):
            if backend == SDPBackend.CUDNN_ATTENTION and max(window) > 0:
                continue
            at = borders(ends).cuda()
            def there(q, k, v):
                with sdpa_kernel(backend):
                    return varlen_attn(q, k, v, at, at, 130, 130, window_size=window, enable_gqa=heads < 4)
            here = lambda q, k, v: packed(q, k, v, ends, ends, left=window[0], right=window[1])
            compare(f"{backend} {window} {heads}", there, here, q, k, v)
""",
    )


def test_output_where_the_program_wants_it(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from torch.nn.attention.varlen import varlen_attn_out, AuxRequest
ends = [0, 3, 133, 140]
q, k, v = torch.randn(3, 140, 4, 32).bfloat16()
at = borders(ends).cuda()
for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
    out = torch.full((140, 4, 32), 7.0, dtype=torch.bfloat16, device="cuda")
    with sdpa_kernel(backend):
        found, sums = varlen_attn_out(out, q.cuda(), k.cuda(), v.cuda(), at, at, 130, 130, return_aux=AuxRequest(lse=True))
    assert found.data_ptr() == out.data_ptr()
    close(out, packed(q, k, v, ends, ends), backend)
    scores = [q[a:b].float().transpose(0, 1) @ k[a:b].float().permute(1, 2, 0) / 32**0.5 for a, b in zip(ends, ends[1:])]
    close(sums, torch.cat([s.logsumexp(-1) for s in scores], 1), f"sums of {backend}")
""",
    )


def test_queries_stand_where_their_kernel_has_them(tmp_path: Path) -> None:
    """With more keys than queries: FlashAttention aligns the last query with the last key; cuDNN, without a cache, the
    first with the first."""
    run(
        tmp_path,
        """
q, k, v = torch.randn(11, 2, 32).bfloat16(), *torch.randn(2, 21, 2, 32).bfloat16()
of_queries, of_keys = [0, 4, 11], [0, 12, 21]
at = borders(of_queries).cuda(), borders(of_keys).cuda()
there = [t.cuda() for t in (q, k, v)]
flash = torch.ops.aten._flash_attention_forward(*there, *at, 7, 12, 0.0, True, False)[0]
close(flash, packed(q, k, v, of_queries, of_keys, right=0), "flash")
cudnn = torch.ops.aten._cudnn_attention_forward(*there, None, *at, 7, 12, True, 0.0, True)[0]
close(cudnn, packed(q, k, v, of_queries, of_keys, right=0, from_the_last=False), "cudnn")
# Of a batch, with heads before tokens and what is added to scores for all heads.
q, k, v = (torch.randn(2, 2, n, 32).bfloat16() for n in (4, 12, 12))
bias = torch.randn(1, 1, 4, 12).bfloat16()
cudnn = torch.ops.aten._cudnn_attention_forward(*(t.cuda() for t in (q, k, v)), bias.cuda(), None, None, 4, 12, True)[0]
expected = [alone(*(t.transpose(0, 1) for t in ts), bias=bias[0].float()).transpose(0, 1) for ts in zip(q, k, v)]
close(cudnn, torch.stack(expected), "batch")
""",
    )


def test_dropout(tmp_path: Path) -> None:
    """With FlashAttention. The backward pass drops the same elements: a loss is linear in the values."""
    run(
        tmp_path,
        """
ends = [0, 5, 25]
q, k, v = torch.randn(3, 25, 2, 32).bfloat16()
at, there = borders(ends).cuda(), [t.cuda() for t in (q, k, v)]
forward = torch.ops.aten._flash_attention_forward(*there, at, at, 20, 20, 0.5, False, False)
out, sums, state, unused, _ = forward
outer = torch.randn(25, 2, 32).bfloat16().cuda()
gradients = torch.ops.aten._flash_attention_backward(
    outer, *there, out, sums, at, at, 20, 20, 0.5, False, state, unused)
assert not torch.allclose(out, torch.ops.aten._flash_attention_forward(*there, at, at, 20, 20, 0.0, False, False)[0])
close((gradients[2] * there[2]).sum(), (out * outer).sum().cpu(), "dropout")
""",
    )


def test_keys_in_pages(tmp_path: Path) -> None:
    """Keys of a paged cache, with one query or some behind earlier ones: with cuDNN, and with pages of 256 tokens by
    FlashAttention."""
    run(
        tmp_path,
        """
from torch.nn.attention.varlen import varlen_attn
ends = [0, 1, 5, 8]
q = torch.randn(8, 4, 32).bfloat16()
table = torch.tensor([[7, 2], [0, 11], [5, 0]], dtype=torch.int32)
for size, used in ((16, [30, 17, 3]), (256, [300, 17, 512])):
    cache = torch.randn(2, 12, size, 2, 32).bfloat16()
    k, v = ([c[row].flatten(0, 1)[:n] for row, n in zip(table.long(), used)] for c in cache)
    expected = torch.cat([alone(q[a:b], k[i], v[i], right=0) for i, (a, b) in enumerate(zip(ends, ends[1:]))])
    where = {"seqused_k": borders(used).cuda(), "block_table": table.cuda()}
    given = q.cuda(), *cache.cuda(), borders(ends).cuda()
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        found = varlen_attn(*given, None, 4, 2 * size, window_size=(-1, 0), enable_gqa=True, **where)
    close(found, expected, f"pages of {size}")
flash = torch.ops.aten._flash_attention_forward(*given, borders([0, 300, 317, 829]).cuda(), 4, 512, 0.0, True, False, **where)[0]
close(flash, expected, "flash")
""",
    )


def test_efficient_attention(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
def efficient(q, k, v, bias=None, at=(None, None), longest=(None, None), kind=0, window=None):
    return torch.ops.aten._efficient_attention_forward(q, k, v, bias, *at, *longest, 0.0, kind, True, window_size=window)[0]

ends, of_keys = [0, 3, 40, 47], [0, 9, 49, 60]
at, longest = (borders(ends).cuda(), borders(of_keys).cuda()), (37, 40)
q, k, v = torch.randn(47, 4, 16), torch.randn(60, 4, 16), torch.randn(60, 4, 24)
for kind, window in ((0, None), (1, None), (2, None), (1, 3), (2, 6)):
    there = lambda *t: efficient(*(x[None] for x in t), at=at, longest=longest, kind=kind, window=window)[0]
    options = {"right": 0 if kind else -1, "left": window - 1 if window else -1, "from_the_last": kind == 2}
    compare(f"{kind} {window}", there, lambda *t: packed(*t, ends, of_keys, **options), q, k, v)

# Of a batch, with what is added to scores.
q, k, v = torch.randn(2, 6, 4, 16), torch.randn(2, 12, 4, 16), torch.randn(2, 12, 4, 16)
bias = torch.randn(2, 4, 6, 12)
here = lambda q, k, v, bias: torch.stack([alone(*t, bias=b) for *t, b in zip(q, k, v, bias)])
compare("bias", efficient, here, q, k, v, bias)
# How long they are is not looked at then.
for longest in ((-1, -1), (64, 64)):
    close(efficient(*(t.cuda() for t in (q, k, v)), longest=longest), here(q, k, v, [None, None]), longest)
""",
    )


def test_jagged_tensors(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
lengths = [3, 50, 7]
for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
    for causal in (False, True):
        parts = [[torch.randn(n, 4, 32).bfloat16() for n in lengths] for _ in range(3)]
        jagged = [torch.nested.nested_tensor([t.cuda() for t in ts], layout=torch.jagged).transpose(1, 2) for ts in parts]
        with sdpa_kernel(kernel):
            found = F.scaled_dot_product_attention(*jagged, is_causal=causal).transpose(1, 2).values()
        expected = torch.cat([alone(*ts, right=0 if causal else -1) for ts in zip(*parts)])
        close(found, expected, (kernel, causal))
""",
    )


def test_the_last_query_sees_all_keys_whatever_computes_it(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
q, k, v = (torch.randn(1, 2, n, 32) for n in (4, 9, 9))
for dtype in (torch.float32, torch.bfloat16):
    for bias, from_the_last in ((causal_lower_right, True), (causal_upper_left, False)):
        given = [t.to(dtype) for t in (q, k, v)]
        found = F.scaled_dot_product_attention(*(t.cuda() for t in given), attn_mask=bias(4, 9))
        expected = alone(*(t[0].transpose(0, 1) for t in given), right=0, from_the_last=from_the_last)
        close(found[0].transpose(0, 1), expected, (dtype, bias))
""",
    )


def test_lengths_decide_how_long_it_takes(tmp_path: Path) -> None:
    """16,384 tokens in one sequence, or most of them in one, or in 64 of equal length; without values, equal lengths
    are assumed."""
    body = """
from torch.nn.attention.varlen import varlen_attn
q = torch.randn(16384, 16, 128, device="cuda", dtype=torch.bfloat16)
for name, ends in {
    "one": [0, 16384], "most": [64 * i for i in range(64)] + [16384], "equal": [256 * i for i in range(65)]
}.items():
    # What an operator computes, without values nobody knows.
    at = borders(ends).cuda() + 0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    varlen_attn(q, q, q, at, at, 16384, 16384, window_size=(-1, 0))
    end.record()
    torch.cuda.synchronize()
    print(name, begin.elapsed_time(end))
"""
    (tmp_path / "cluster.toml").write_text(ONE_GPU)
    script = write_script(tmp_path, REFERENCE + body)
    found = {}
    for values in ("small", "none"):
        words = ("run", "--cluster", "cluster.toml", "--cuda", "--compute", "model", "--values", values, script)
        done = uniference(*words, cwd=tmp_path)
        assert done.code == 0, done.err
        found[values] = {name: float(time) for name, time in map(str.split, done.out.splitlines()[:3])}
        assert ("lengths that are not known" in done.err) is (values == "none"), done.err
    known, assumed = found["small"], found["none"]
    # One sequence of 16,384 tokens has 64 times as many pairs as 64 of 256, one of 12,352 0.57 times as many.
    assert 0.5 < known["most"] / known["one"] < 0.65, found
    assert known["one"] > 5 * known["equal"], found
    assert assumed["one"] == known["one"], found
    assert assumed["most"] == known["equal"], found
