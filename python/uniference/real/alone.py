"""Runs single operators, for `uniference profile` to time: the operators of a program that the database lacks.

    python -m uniference.real.alone FILE

Each line of FILE is an operator: its name, and for each argument of its schema the value, or for a tensor the type,
sizes and strides. Values that were not recorded are made up. An operator that cannot be run with such values is left
out.
"""

import contextlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

REPETITIONS = 12
BUDGET_S = 0.5
"""Seconds for which an operator is repeated, after three runs."""
LARGE_BYTES = 1 << 20
"""Arguments below this size do not rotate: in a program they are in a cache, because the previous operator has just
used them."""
RANDOM = 1 << 16
"""Number of random elements; larger tensors repeat them."""
CACHE_BYTES = 1 << 26
"""Bytes of memory through which larger arguments rotate, so that no cache holds them."""


def main() -> None:
    """Runs all operators of the file."""
    for line in Path(sys.argv[1]).read_text().splitlines():
        described = json.loads(line)
        # Any exception is accepted, because it depends on the operator; the caller notices that the operator was not
        # timed.
        with contextlib.suppress(Exception):
            run(described["name"], described["arguments"])


def run(name: str, arguments: list[Any]) -> None:
    """Runs an operator several times."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    function = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    schema = function._schema.arguments
    size = sum(map(_bytes, arguments))
    copies = 1 if size < LARGE_BYTES else min(REPETITIONS, math.ceil(CACHE_BYTES / size))
    bound = arguments[0]["sizes"][0] if base == "embedding" else 1
    calls = [[_value(*pair, bound) for pair in zip(arguments, schema, strict=True)] for _ in range(copies)]
    begin = time.perf_counter()
    for number in range(REPETITIONS):
        values = calls[number % copies]
        pairs = list(zip(values, schema, strict=True))
        function(
            *(value for value, argument in pairs if not argument.kwarg_only),
            **{argument.name: value for value, argument in pairs if argument.kwarg_only},
        )
        if number >= 2 and time.perf_counter() - begin > BUDGET_S:
            break


def _bytes(argument: Any) -> int:
    match argument:
        case {"dtype": str(dtype), "sizes": sizes}:
            return int(math.prod(sizes) * getattr(torch, dtype).itemsize)
        case {"tensors": tensors}:
            return sum(map(_bytes, tensors))
    return 0


def _value(argument: Any, schema: Any, bound: int) -> Any:
    match argument:
        case {"dtype": _}:
            return _tensor(argument, bound)
        case {"tensors": tensors}:
            return [None if tensor is None else _tensor(tensor, bound) for tensor in tensors]
        case {"number": _}:
            # This value is harmless in a logarithm, a division, a probability or a decay.
            return 1e-5 if "eps" in schema.name else 0.5
        case {"other": _}:
            return torch.device("cpu") if "Device" in str(schema.type) else None
        case list() if "bool" in str(schema.type):
            return list(map(bool, argument))
    return argument


def _tensor(tensor: dict[str, Any], bound: int) -> Tensor:
    """A tensor whose elements may overlap. Integers are below `bound`, because they may be indices."""
    dtype = getattr(torch, tensor["dtype"])
    sizes, strides = tensor["sizes"], tensor["strides"]
    elements = 0 if 0 in sizes else 1 + sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
    if dtype.is_floating_point or dtype.is_complex:
        # Generating all numbers at random would need more time than the operator.
        flat = torch.rand(min(elements, RANDOM)).to(dtype).repeat(-(-elements // RANDOM))[:elements]
    elif dtype == torch.bool:
        flat = torch.ones(elements, dtype=dtype)
    else:
        flat = torch.randint(0, bound, (elements,)).to(dtype)
    return flat.as_strided(sizes, strides)


if __name__ == "__main__":
    main()
