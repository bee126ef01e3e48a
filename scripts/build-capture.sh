#!/usr/bin/env bash
# Compiles cpp/ for the torch of an environment: `build-capture.sh PYTHON [FOLDER]` writes FOLDER/capture-TORCH.so (python/uniference).
# `build-capture.sh --check PYTHON` writes no file; warnings of the compiler and of clang-tidy are errors.
# `build-capture.sh --sanitize PYTHON FOLDER` compiles with AddressSanitizer and UndefinedBehaviorSanitizer.
# A missing C++ compiler is an error only with one of these options: without the library, programs run with `--compute none` only.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=
case $1 in --check | --sanitize) mode=$1; shift ;; esac
python=$1
folder=${2:-python/uniference}
cxx=${CXX:-g++}
if ! command -v "$cxx" >/dev/null; then
    if [ "$mode" ]; then echo "error: there is no C++ compiler ($cxx)" >&2; exit 1; fi
    echo "warning: there is no C++ compiler ($cxx): operators are not captured, and programs run with --compute none only" >&2
    echo "hint: apt install g++ (or your system's package of it), or name another: CXX=clang++" >&2
    exit 0
fi
read -r torch version < <("$python" -c '
import importlib.metadata, importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
print(folder, ".".join(importlib.metadata.version("torch").split(".")[:2]))')
abi=$("$python" -c 'import pathlib, zlib; print(zlib.crc32(pathlib.Path("cpp/abi.h").read_bytes()))')
flags=("-DUNIFERENCE_ABI_VERSION=${abi}u" -std=c++20 -O2 -DNDEBUG -fPIC -fvisibility=hidden -Wall -Wextra)
flags+=(-isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include")
if [ "$mode" = --sanitize ]; then
    flags+=(-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined)
fi
if [ "$mode" = --check ]; then
    "$cxx" "${flags[@]}" -Werror -fsyntax-only cpp/capture.cpp
    exec "$(dirname "$python")/clang-tidy" --quiet cpp/capture.cpp -- "${flags[@]}"
fi
target=$folder/capture-$version.so
temporary=$(mktemp --tmpdir="$folder" .capture-XXXXXX.so)
trap 'rm -f "$temporary"' EXIT
# Symbols of the interpreter come from the process that loads the library.
"$cxx" "${flags[@]}" -shared cpp/capture.cpp -o "$temporary" -L"$torch/lib" -ltorch_cpu -lc10 -Wl,--as-needed
chmod 755 "$temporary"
mv "$temporary" "$target"
