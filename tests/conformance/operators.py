"""Compares the results of operators on simulated GPUs with those on the CPU, on the samples of PyTorch's own tests of
operators (OpInfo).

Usage, under `uniference run --cuda --values all`: operators.py [--dtypes float32,int64] [--samples N] [--part I/N].
Prints each operator before it is called, and a line `DIFFERS operator dtype: how` for each that differs. Shapes, types,
values and gradients are compared; for random or uninitialized results only shapes and types.
"""

import argparse
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

# Samples that cannot be moved to a GPU, and operators, some only with one type, that differ on GPUs.
LEFT_OUT = {
    "as_strided.partial_views": "its samples reach beyond the elements of the tensor that is moved",
    "tensor_split": "takes its places from the CPU",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "of the CPU alone",
    "sparse.mm.reduce": "of the CPU alone",
    "_native_batch_norm_legit": "keeps no statistics on the CPU where it does not train",
    "native_batch_norm": "keeps no statistics on the CPU where it does not train",
    "_batch_norm_with_update": "keeps statistics of half precision as floats on GPUs",
    "native_layer_norm": "keeps statistics of half precision as floats on GPUs",
    "linalg.ldl_solve": "takes no Hermitian matrices on GPUs",
    "nn.functional.embedding_bag bfloat16": "has no gradient of maxima in bfloat16 on GPUs",
    "linalg.lstsq": "has one driver on GPUs",
    "linalg.lstsq.grad_oriented": "has one driver on GPUs",
}


def main() -> None:
    """Runs the operators that the command line selects."""
    warnings.filterwarnings("ignore")
    # A warning about missing values is an error, because with `--values all` all operators must have values.
    warnings.filterwarnings("error", message=".*on simulated GPUs.*")
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--samples", type=int, default=12, help="of each operator and type, at most")
    parser.add_argument("--part", default="0/1", help="of so many equal parts of all operators")
    words = parser.parse_args()
    part, parts = map(int, words.part.split("/"))
    chosen = [op for number, op in enumerate(op_db) if number % parts == part]
    compared = 0
    for op in chosen:
        print("OPERATOR", name_of(op), flush=True)
        if name_of(op) in LEFT_OUT:
            continue
        for dtype in (getattr(torch, name) for name in words.dtypes.split(",")):
            if f"{name_of(op)} {str(dtype).removeprefix('torch.')}" in LEFT_OUT:
                continue
            if dtype not in op.supported_dtypes("cuda") or dtype not in op.supported_dtypes("cpu"):
                continue
            for sample in samples(op, dtype, words.samples):
                if expected := on_cpu(op, sample):
                    compared += 1
                    if how := compare(op, sample, *expected):
                        print("DIFFERS", name_of(op), str(dtype).removeprefix("torch."), f": {how}", flush=True)
                        break
    print("COMPARED", compared)


def name_of(op: Any) -> str:
    """Name of an operator with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Any]:
    """The first samples and, if there are many, some more at equal distances."""
    torch.manual_seed(0)
    requires_grad = dtype.is_floating_point and op.supports_autograd
    # Some samples do not exist for some types.
    try:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    except (RuntimeError, TypeError, ValueError):
        return
    yield from found[:: max(1, len(found) // most)][:most]


def on_cpu(op: Any, sample: Any) -> tuple[list[Any], list[Any], bool] | None:
    """Result tensors, gradients, and whether these have values that can be compared. None: the operator raises an
    error."""
    try:
        results = [run(op, sample, lambda value: moved(value, "cpu"), seed) for seed in (0, 1)]
    # Some samples test errors, of any type.
    except Exception:
        return None
    (first, gradients), (second, _) = results
    same = not any(difference(a, b) for a, b in zip(map(plain, first), map(plain, second), strict=True))
    return first, gradients, same and not draws(op) and not op.name.startswith(("empty", "new_empty"))


def draws(op: Any) -> bool:
    """Whether the operator's samples are called with a seed of their own."""
    return "wrapper_set_seed" in getattr(getattr(op.op, "__code__", None), "co_names", ())


def run(op: Any, sample: Any, move: Callable[[Any], Any], seed: int) -> tuple[list[Any], list[Any]]:
    """The operator's results, and the gradients of their sum with respect to all inputs that require one."""
    given = tree_map(move, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(seed)
    results = [leaf for leaf in tree_leaves(op(given[0], *given[1], **given[2])) if isinstance(leaf, torch.Tensor)]
    inputs = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    sums = [result.sum() for result in results if result.requires_grad and not result.is_complex()]
    gradients = torch.autograd.grad(sums, inputs, allow_unused=True) if sums and inputs else ()
    return results, list(gradients)


def compare(op: Any, sample: Any, results: list[Any], gradients: list[Any], same: bool) -> str | None:
    """Description of the GPU's difference; None: there is none."""
    try:
        there = run(op, sample, lambda value: moved(value, "cuda"), 0)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]!r}"
    for what, ours, theirs in (("result", results, there[0]), ("gradient", gradients, there[1])):
        for a, b in itertools.zip_longest(ours, theirs):
            if (a is None) != (b is None):
                return f"a {what} is not there"
            if a is None:
                continue
            a, b = plain(a), plain(b)
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                return f"a {what} is {b.dtype} of {tuple(b.shape)}, not {a.dtype} of {tuple(a.shape)}"
            if same and (how := difference(a, b, 3e-2 if a.element_size() < 4 and a.is_floating_point() else 1e-3)):
                return f"a {what}: {how}"
    return None


def difference(a: torch.Tensor, b: torch.Tensor, tolerance: float = 0.0) -> str | None:
    """PyTorch's description of the difference; None: the tensors are close."""
    try:
        torch.testing.assert_close(b, a, equal_nan=True, rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def moved(value: Any, place: str) -> Any:
    """A copy of a tensor on a device, because operators may write to it; or the device itself for a device argument."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(place, copy=True).requires_grad_(value.requires_grad)
    is_device = isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu")
    return torch.device(place) if is_device else value


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy on the CPU."""
    tensor = tensor.detach().cpu()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


if __name__ == "__main__":
    main()
