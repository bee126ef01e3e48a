#!/usr/bin/env bash
# Compiles cpp/ for the torch of an environment: `build-capture.sh PYTHON [FOLDER]` writes FOLDER/capture-TORCH.so (python/uniference).
# `build-capture.sh --check PYTHON` compiles without writing a file, and treats warnings as errors.
# A missing C++ compiler is no error: operators are then captured in Python, several times as slowly.
set -euo pipefail
cd "$(dirname "$0")/.."
check=
if [ "$1" = --check ]; then check=yes; shift; fi
python=$1
folder=${2:-python/uniference}
cxx=${CXX:-g++}
if ! command -v "$cxx" >/dev/null; then
    echo "warning: there is no C++ compiler ($cxx): operators are captured in Python, several times as slowly" >&2
    echo "hint: apt install g++ (or your system's package of it), or name another: CXX=clang++" >&2
    exit 0
fi
read -r torch version < <("$python" -c '
import importlib.metadata, importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
print(folder, ".".join(importlib.metadata.version("torch").split(".")[:2]))')
compile=("$cxx" -std=c++20 -O2 -DNDEBUG -fPIC -shared -fvisibility=hidden -Wall -Wextra)
compile+=(-isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" cpp/capture.cpp)
if [ "$check" ]; then exec "${compile[@]}" -Werror -fsyntax-only; fi
target=$folder/capture-$version.so
temporary=$(mktemp --tmpdir="$folder" .capture-XXXXXX.so)
trap 'rm -f "$temporary"' EXIT
# Symbols of the interpreter come from the loading process.
"${compile[@]}" -o "$temporary" -L"$torch/lib" -ltorch_cpu -lc10 -Wl,--as-needed
chmod 755 "$temporary"
mv "$temporary" "$target"
