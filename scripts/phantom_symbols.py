"""Writes crates/phantom/symbols: the names of functions of NVIDIA's libraries, from the packages that torch installs.

A table has the exported names of a library; for libcuda and libnvidia-ml, which are in no package, it has the names in
a header and in cuda.bindings. Headers give the return values of functions without code of their own.
"""

import argparse
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

TABLES = Path(__file__).parents[1] / "crates/phantom/symbols"
SITE = Path(str(distribution("nvidia-cuda-runtime").locate_file("")))
NVIDIA = SITE / "nvidia"

# SONAME: package, prefixes of names, folder, headers, and the error for unsupported calls.
LIBRARIES = {
    "libcudart.so.13": (
        "nvidia-cuda-runtime",
        "cuda|__cuda",
        "cu13",
        ("cuda_runtime_api.h",),
        (801, "cudaErrorNotSupported"),
    ),
    "libcublas.so.13": ("nvidia-cublas", "cublas", "cu13", ("cublas*.h",), (15, "CUBLAS_STATUS_NOT_SUPPORTED")),
    "libcublasLt.so.13": ("nvidia-cublas", "cublasLt", "cu13", ("cublasLt.h",), (15, "CUBLAS_STATUS_NOT_SUPPORTED")),
    "libcudnn.so.9": ("nvidia-cudnn-cu13", "cudnn", "cudnn", ("cudnn*.h",), (3000, "CUDNN_STATUS_NOT_SUPPORTED")),
    "libcufft.so.12": ("nvidia-cufft", "cufft", "cu13", ("cufft*.h",), (16, "CUFFT_NOT_SUPPORTED")),
    # torch 2.14 needs this library, but calls none of its functions. Its only error for unsupported calls is that of a
    # GPU that lacks support.
    "libcurand.so.10": ("nvidia-curand", "curand", "cu13", ("curand.h",), (204, "CURAND_STATUS_ARCH_MISMATCH")),
    "libcusolver.so.12": (
        "nvidia-cusolver",
        "cusolver",
        "cu13",
        ("cusolver*.h",),
        (9, "CUSOLVER_STATUS_NOT_SUPPORTED"),
    ),
    "libcusparse.so.12": (
        "nvidia-cusparse",
        "cusparse",
        "cu13",
        ("cusparse*.h",),
        (10, "CUSPARSE_STATUS_NOT_SUPPORTED"),
    ),
    "libcusparseLt.so.0": (
        "nvidia-cusparselt-cu13",
        "cusparseLt",
        "cusparselt",
        ("cusparseLt.h",),
        (10, "CUSPARSE_STATUS_NOT_SUPPORTED"),
    ),
    "libcupti.so.13": ("nvidia-cuda-cupti", "cupti", "cu13", ("cupti*.h",), (27, "CUPTI_ERROR_NOT_SUPPORTED")),
    "libcufile.so.0": ("nvidia-cufile", "cuFile", "cu13", ("cufile.h",), (5002, "CU_FILE_PLATFORM_NOT_SUPPORTED")),
    "libnccl.so.2": ("nvidia-nccl-cu13", "p?nccl", "nccl", ("nccl*.h",), (5, "ncclInvalidUsage")),
    "libnvshmem_host.so.3": (
        "nvidia-nvshmem-cu13",
        "nvshmem",
        "nvshmem",
        ("**/*.h",),
        (3, "NVSHMEMX_ERROR_NOT_SUPPORTED"),
    ),
    "libcuda.so.1": ("nvidia-cuda-runtime", "cu", "cu13", ("cuda.h",), (801, "CUDA_ERROR_NOT_SUPPORTED")),
    "libnvidia-ml.so.1": ("cuda-bindings", "nvml", "", (), (3, "NVML_ERROR_NOT_SUPPORTED")),
}
# Variants for other default streams, and NVSHMEM's functions per element type (`nvshmem_float_put`).
NOT_CALLED = re.compile(
    r"_ptsz$|_ptds$|^nvshmemx?_(float|double|half|bfloat16|u?int\d*|[su]?char|u?short|u?long(long)?|size|ptrdiff)_"
)
VARIABLE = "nvshmem_selected_device_transport"


def exported(library: Path) -> set[str]:
    """The names of functions that a library defines."""
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    names = {name.split("@")[0] for _, kind, name in (line.split() for line in lines) if kind in "TWi"}
    # The only variable that torch binds.
    return names | ({VARIABLE} if any(VARIABLE in line for line in lines) else set())


def named_by_bindings(module: str) -> set[str]:
    """The names that a module of cuda.bindings resolves in the driver."""
    (library,) = (SITE / "cuda/bindings/_internal").glob(f"{module}.*.so")
    return set(re.findall(r"\b(?:cu[A-Z]|nvml[A-Z])\w+\b", library.read_bytes().decode("latin-1")))


def returns(headers: str) -> dict[str, str]:
    """Return values other than the library's error, for functions without code of their own: `null` or `nothing`."""
    kinds: dict[str, str] = {}
    for kind, name in re.findall(r"^([^;{}#\n(=]*?)\b(\w+)\s*\(", headers, re.M):
        if "*" in kind:
            kinds[name] = " null"
        elif re.search(r"\b(void|size_t)\b", kind):
            kinds[name] = " nothing"
    return kinds


def table(soname: str) -> str:
    package, prefix, folder, patterns, (code, error) = LIBRARIES[soname]
    source = (
        f"# {soname} of {package} {version(package)}; written by scripts/phantom_symbols.py\n# error {code} {error}\n"
    )
    headers = "\n".join(
        path.read_text(errors="replace")
        for pattern in patterns
        for path in sorted((NVIDIA / folder / "include").glob(pattern))
    )
    headers = re.sub(r"/\*.*?\*/|//[^\n]*", "", headers, flags=re.S)
    match soname:
        case "libcuda.so.1":
            names = named_by_bindings("driver") | set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(", headers))
            # A name without a version is an alias of the header's versioned name; old programs use either.
            names |= {
                word for pair in re.findall(r"#define\s+(cu[A-Z]\w+)\s+(cu[A-Z]\w+_v\d)\b", headers) for word in pair
            }
        case "libnvidia-ml.so.1":
            names = named_by_bindings("nvml")
        case _:
            names = exported(NVIDIA / folder / "lib" / soname)
    chosen = sorted(
        name for name in names if re.fullmatch(rf"(?:{prefix})[A-Z_a-z]\w*", name) and not NOT_CALLED.search(name)
    )
    kinds = returns(headers)
    return source + "".join(f"{name}{kinds.get(name, '')}\n" for name in chosen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare the tables with the installed packages instead of writing them"
    )
    check = parser.parse_args().check
    status = 0
    for soname in LIBRARIES:
        try:
            path, text = TABLES / soname, table(soname)
        except PackageNotFoundError as missing:
            # A torch version installs only its own packages; the other version's table stays unchanged.
            print(f"{soname}: {missing.name} is not installed", file=sys.stderr)
            continue
        if not check:
            path.write_text(text)
        elif path.read_text() != text:
            print(f"{path} is not what the installed packages have\nhint: run {Path(sys.argv[0]).name}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
