"""Owns which versions of torch are supported, and what of torch is loaded before a program starts."""

import importlib
import warnings

# The newest first: it is the one to install. The command line has the same list, to refuse others before it loads anything.
_SUPPORTED = ("2.15", "2.14")
SUPPORTED = " or ".join(f"{version}.x" for version in _SUPPORTED)
ADVICE = f"install a supported version: pip install torch=={_SUPPORTED[0]}.0"

# torch._dynamo brings DTensor, tensor parallel and FSDP with it; torch itself loads it lazily, at the first optimiser or collective.
_PRELOADED = (
    "torch._dynamo",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
)


def is_supported(version: str) -> bool:
    """Whether the private interfaces of that version of torch are known."""
    return version.startswith(tuple(f"{supported}." for supported in _SUPPORTED))


def preload() -> None:
    """Imports what would otherwise be part of a program's time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in _PRELOADED:
            importlib.import_module(module)
