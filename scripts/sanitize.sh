#!/usr/bin/env bash
# Runs tests of simulated GPUs with the C++ library under AddressSanitizer and UndefinedBehaviorSanitizer: `sanitize.sh
# PYTHON [OPTION OF PYTEST...]`. Errors end the rank, so its test fails and shows the report. Leaks are not searched for,
# because the library and Python keep memory until the process ends.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
# A package with another C++ library, and otherwise the checkout's files.
package=$PWD/target/sanitized/uniference
mkdir -p "$package"
ln -sfn "$PWD"/python/uniference/* "$package"
scripts/build-capture.sh --sanitize "$python" "$package"
export PYTHONPATH=$PWD/target/sanitized
# The simulator's libraries are preloaded before the sanitizer's.
export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0
export UBSAN_OPTIONS=print_stacktrace=1
# Its interceptor of exceptions needs the C++ library, which Python does not load at its start.
SANITIZER=$("${CXX:-g++}" -print-file-name=libasan.so):$("${CXX:-g++}" -print-file-name=libstdc++.so)
export SANITIZER
# The sanitizer's `dlopen` does not search the folder of torch, which is its caller.
LD_LIBRARY_PATH=$("$python" -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib")')
export LD_LIBRARY_PATH
exec "$python" -m pytest -q -p no:cacheprovider "$@" tests/python/test_simulated_values.py tests/python/test_packed_attention.py
