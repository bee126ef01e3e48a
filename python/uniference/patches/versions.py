"""Owns the list of supported torch versions, and of torch modules that are loaded before a program starts."""

import importlib
import warnings

# The newest version is the first: it is the version to install. The command line has the same list, to refuse other
# versions before it loads anything.
_SUPPORTED = ("2.15", "2.14")
SUPPORTED = " or ".join(f"{version}.x" for version in _SUPPORTED)
ADVICE = f"install a supported version: pip install torch=={_SUPPORTED[0]}.0"

# torch._dynamo imports DTensor, tensor parallel and FSDP; torch itself loads it lazily, at the first optimizer or
# collective.
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
    """Imports modules whose import would otherwise count as the program's time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in _PRELOADED:
            importlib.import_module(module)
