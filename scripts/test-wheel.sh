#!/usr/bin/env bash
# Installs the wheel in target/wheels into an empty virtual environment, and uses it as a user would. torch comes from
# .venv, which saves a download.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(ls -t target/wheels/uniference-*.whl | head -n 1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
.venv/bin/python -m venv --without-pip "$scratch/venv"
lent=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
site=$("$scratch/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$lent" >"$site/lent.pth"
.venv/bin/pip --python "$scratch/venv/bin/python" install --quiet --no-deps --no-index --force-reinstall "$(realpath "$wheel")"
cp examples/ring.py "$scratch"
cd "$scratch"
unset PYTHONPATH
used=$(venv/bin/python -c 'import uniference; print(uniference.__file__)')
[[ $used == "$scratch"/venv/* ]] || { echo "error: $used is imported in place of the wheel" >&2; exit 1; }
venv/bin/uniference run --ranks 3 --compute none --out run ring.py
replayed=$(venv/bin/uniference replay run --out again)
[[ $replayed == *makespan* ]] || { echo "error: the replay printed no makespan: $replayed" >&2; exit 1; }
venv/bin/python -c 'import uniference; assert uniference.simulate("ring.py", ranks=2, compute="none").makespan > 0'
# The program sleeps until this test's timeout, if the wheel lacks the library that programs of ranks load.
echo 'import subprocess; subprocess.run(["sleep", "10000"])' >sleep.py
timeout 120 venv/bin/uniference run --ranks 1 --compute none --out slept sleep.py >slept.txt || { echo "error: sleep sleeps on the machine's clock" >&2; exit 1; }
# The C++ library is part of the wheel only if a compiler was available.
if command -v "${CXX:-g++}" >/dev/null; then
    venv/bin/python -c 'from uniference.rank.capture import library; assert library() is not None, "the wheel lacks the C++ library"'
fi
echo "$(basename "$wheel") works in an environment of its own"
