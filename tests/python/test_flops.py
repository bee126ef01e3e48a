"""Operators as PyTorch calls them, with the floating-point operations that `torch.utils.flop_counter` counts.

`crates/costs/tests/operators.json` is the reference for tests of `uniference-costs`; this test checks that it
equals PyTorch's figures. After a change: `python tests/python/test_flops.py`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
REFERENCE = Path(__file__).parents[2] / "crates" / "costs" / "tests" / "operators.json"

# Numbers of c10::ScalarType.
DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e4m3fn: 24,
    torch.uint64: 29,
}


def encoded(value: Any, written: bool = False) -> Any:
    """An argument or a result, in the format of `crates/costs/tests/support`."""
    if isinstance(value, torch.Tensor):
        return {"tensor": [DTYPES[value.dtype], int(written), list(value.shape), list(value.stride())]}
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return {"tensors": [None if item is None else encoded(item, written) for item in value]}
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (list, tuple)) and all(type(item) is int for item in value):
        return list(value)
    return {"other": "float" if isinstance(value, float) else "text" if isinstance(value, str) else "other"}


def definition(op: Any, args: tuple, kwargs: dict, out: Any) -> dict[str, Any]:
    """The definition that a capture below autograd records for a call."""
    schema = op._schema
    arguments = []
    for index, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        value = args[index] if index < len(args) else kwargs.get(argument.name, default)
        written = argument.alias_info is not None and argument.alias_info.is_write
        arguments.append(encoded(value, written))
    results = list(out) if isinstance(out, tuple) else [] if out is None else [out]
    counted = flop_registry.get(op.overloadpacket)
    flops = counted(*args, **kwargs, out_val=out) if counted else None
    name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
    return {"name": name, "arguments": arguments, "results": [encoded(r) for r in results], "flops": flops}


class Captured(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.definitions: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.definitions.append(definition(func, args, kwargs or {}, out))
        return out


def calls() -> list[tuple[Any, tuple]]:
    """At least one call of every operator that torch counts; on tensors without memory."""

    def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    a, b = t(48, 80), t(80, 112)
    x, y = t(3, 48, 80), t(3, 80, 112)
    q, k, lse = t(2, 8, 64, 32), t(2, 4, 96, 32), t(2, 8, 64)
    half = torch.float16
    fq, fk = t(2, 64, 8, 32, dtype=half), t(2, 96, 4, 32, dtype=half)
    flse, seed = t(2, 8, 64), t(2, dtype=torch.int64)
    # torch interprets the sequence dimension as heads: with equal sizes of both the count is right.
    square = t(2, 8, 8, 32)
    image, weight = t(4, 6, 20, 22), t(10, 6, 3, 5)
    pixels = t(4, 10, 18, 18)
    up, up_weight, up_out = t(4, 6, 9, 9), t(6, 10, 3, 3), t(4, 10, 11, 11)
    one, zero = [1, 1], [0, 0]
    conv = aten.convolution.default
    back = aten.convolution_backward.default
    mask = [True, True, True]
    f8 = torch.float8_e4m3fn
    scale = t(1)
    return [
        (aten.mm.default, (a, b)),
        (aten.mm.default, (t(80, 48).t(), b)),
        (aten.mm.default, (a, t(112, 80).t())),
        (aten.mm.default, (t(80, 48).t(), t(112, 80).t())),
        (aten.addmm.default, (t(112), a, b)),
        (aten.bmm.default, (x, y)),
        (aten.baddbmm.default, (t(3, 48, 112), x, y)),
        (aten._scaled_mm.default, (t(48, 80, dtype=f8), t(112, 80, dtype=f8).t(), scale, scale, None, None, half)),
        (conv, (image, weight, None, one, zero, one, False, zero, 1)),
        (conv, (up, up_weight, None, one, zero, one, True, zero, 1)),
        (conv, (t(4, 6, 20), t(9, 6, 5), None, [1], [0], [1], False, [0], 1)),
        (conv, (image, t(12, 3, 3, 3), None, [2, 2], one, one, False, zero, 2)),
        (aten._convolution.default, (image, weight, None, one, zero, one, False, zero, 1, False, False, False, False)),
        (back, (pixels, image, weight, [10], one, zero, one, False, zero, 1, mask)),
        (back, (pixels, image, weight, None, one, zero, one, False, zero, 1, [False, True, False])),
        (back, (up_out, up, up_weight, [10], one, zero, one, True, zero, 1, mask)),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (q, q, q, 0.0, False)),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (q, q, q, 0.0, True)),
        (aten._scaled_dot_product_flash_attention_for_cpu_backward.default, (q, q, q, q, q, lse, 0.0, False)),
        (aten._scaled_dot_product_flash_attention.default, (q.half(), q.half(), q.half(), 0.0, True)),
        (
            aten._scaled_dot_product_efficient_attention.default,
            (q, k[:, :1].expand(2, 8, 96, 32), k[:, :1].expand(2, 8, 96, 32), None, True),
        ),
        (aten._scaled_dot_product_cudnn_attention.default, (q.half(), q.half(), q.half(), None, True)),
        (aten._flash_attention_forward.default, (fq, fk, fk, None, None, 64, 96, 0.0, False, False)),
        (aten._efficient_attention_forward.default, (square, square, square, None, None, None, None, None, 0.0, 0)),
        (
            aten._scaled_dot_product_flash_attention_backward.default,
            (q.half(), q.half(), q.half(), q.half(), q.half(), lse, None, None, 64, 64, 0.0, True, seed, seed),
        ),
        (
            aten._scaled_dot_product_efficient_attention_backward.default,
            (q, q, q, q, None, q, lse, seed, seed, 0.0, [True, True, True, False]),
        ),
        (
            aten._scaled_dot_product_cudnn_attention_backward.default,
            (q.half(), q.half(), q.half(), q.half(), q.half(), lse, seed, seed, None, None, None, 64, 64, 0.0, False),
        ),
        (
            aten._flash_attention_backward.default,
            (fq, fq, fq, fq, fq, flse, None, None, 64, 64, 0.0, False, seed, seed),
        ),
        (
            aten._efficient_attention_backward.default,
            (square, square, square, square, None, square, None, None, 8, 8, lse, 0.0, seed, seed, 0, False),
        ),
        (aten.native_layer_norm.default, (t(6, 50, 64), [64], t(64), t(64), 1e-5)),
        (aten._softmax.default, (t(6, 50, 64), -1, False)),
        (aten.add.Tensor, (t(50, 64), t(64))),
        (aten.mul.Tensor, (t(50, 64), t(50, 1).expand(50, 64))),
        (aten.add_.Tensor, (t(50, 64), t(50, 64))),
        (aten.embedding.default, (t(1000, 64), t(7, dtype=torch.int64))),
        (aten.embedding_dense_backward.default, (t(7, 64), t(7, dtype=torch.int64), 1000, -1, False)),
        (aten.sum.dim_IntList, (t(50, 64), [1])),
        (
            aten._to_copy.default,
            (t(50, 64),),
        ),
        (aten.view.default, (t(50, 64), [64, 50])),
        (aten._foreach_add_.Scalar, ([t(50, 64), t(64)], 1)),
        (aten.native_group_norm.default, (image, t(6), t(6), 4, 6, 440, 3, 1e-5)),
        (aten.topk.default, (t(50, 64), 8)),
        (aten.gather.default, (t(50, 64), 1, t(50, 3, dtype=torch.int64))),
    ]


def without_kernel(op: Any, args: tuple) -> Any:
    """Results of operators that compute nothing on tensors without memory."""
    name = op._schema.name
    if name == "aten::_convolution":
        return aten.convolution.default(*args[:9])
    if name == "aten::_scaled_dot_product_cudnn_attention":
        return (torch.empty_like(args[0]), *[None] * 8)
    if "attention_backward" in name or name.endswith("_for_cpu_backward"):
        return tuple(torch.empty_like(tensor) for tensor in args[1:4])
    raise LookupError(f"say here what {name} returns: it has no kernel on this machine")


def single_calls() -> list[dict[str, Any]]:
    found = []
    for op, args in calls():
        try:
            out = op(*args)
        except (NotImplementedError, RuntimeError):
            out = without_kernel(op, args)
        found.append(definition(op, args, {}, out))
    return found


class Block(torch.nn.Module):
    """A block of Llama 3: 256 wide, 8 heads of 32 with 2 KV heads, an inner width of 704."""

    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.q, self.k = linear(256, 256, bias=False), linear(256, 64, bias=False)
        self.v, self.o = linear(256, 64, bias=False), linear(256, 256, bias=False)
        self.gate, self.up = linear(256, 704, bias=False), linear(256, 704, bias=False)
        self.down = linear(704, 256, bias=False)
        self.before, self.between = torch.nn.RMSNorm(256), torch.nn.RMSNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (-1, 32)).transpose(1, 2)

        def rotated(y: torch.Tensor) -> torch.Tensor:
            first, second = y.chunk(2, -1)
            return y * y.cos() + torch.cat([-second, first], -1) * y.sin()

        y = self.before(x)
        q, k, v = rotated(heads(self.q(y))), rotated(heads(self.k(y))), heads(self.v(y))
        k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        y = self.between(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def llama_step() -> list[dict[str, Any]]:
    """Forward, backward and optimizer step of a block, on 2 sequences of 64 tokens."""
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 64, 256, requires_grad=True)
    optimizer = torch.optim.AdamW(block.parameters(), foreach=True)
    with Captured() as captured:
        block(x).sum().backward()
        optimizer.step()
    return captured.definitions


def reference() -> str:
    lines = {
        name: [json.dumps(d) for d in found] for name, found in [("single", single_calls()), ("llama", llama_step())]
    }
    parts = [f'"{name}": [\n' + ",\n".join(found) + "\n]" for name, found in lines.items()]
    return "{" + ",\n".join(parts) + "}\n"


def test_the_reference_is_what_torch_counts() -> None:
    stored, now = json.loads(REFERENCE.read_text()), json.loads(reference())
    assert stored["single"] == now["single"]
    counted = [[d["flops"] for d in which["llama"] if d["flops"]] for which in (stored, now)]
    assert counted[0] == counted[1]


def test_every_operator_that_torch_counts_is_in_the_reference() -> None:
    single = {d["name"].split(".")[0] for d in json.loads(REFERENCE.read_text())["single"]}
    packets = [op for op in flop_registry if isinstance(op, torch._ops.OpOverloadPacket)]
    missing = {str(op).replace("aten.", "aten::") for op in packets} - single
    # Kernels of single backends, with the arguments of the operators above.
    assert missing == {"aten::cudnn_convolution", "aten::_slow_conv2d_forward", "aten::convolution_overrideable"}


if __name__ == "__main__":
    REFERENCE.write_text(reference())
