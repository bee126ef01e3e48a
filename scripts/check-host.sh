#!/usr/bin/env bash
# Prints requirements of `make setup` that this machine lacks, and how to install them. Changes nothing.
set -u
PYTHON=${PYTHON:-python3}
NEEDED_GB=9   # .venv 6 GB (PyPI's torch is the CUDA build), target/ 1 GB, and the downloads while they are unpacked
missing=0

lacks() {
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    missing=1
}

at_least() { # VERSION MINIMUM
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

free_gb=$(($(df -Pk . | awk 'NR == 2 { print $4 }') / 1000000))
[ "$free_gb" -ge "$NEEDED_GB" ] ||
    lacks "$free_gb GB are free here, $NEEDED_GB GB are needed" "make room, or clone to another disk"

command -v cc >/dev/null || lacks "there is no C compiler" "apt install gcc (or your system's package of it)"

# A missing compiler is no error: operators are then captured in Python.
command -v "${CXX:-g++}" >/dev/null ||
    printf 'warning: %s\nhint: %s\n' "there is no C++ compiler: operators are captured in Python, several times as slowly, and --values must be all" \
        "apt install g++ (or your system's package of it), or name another: CXX=clang++" >&2

rust_needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null; then
    lacks "there is no Rust" "install it from https://rustup.rs, then open a new shell"
elif rust=$(rustc --version | cut -d ' ' -f 2) && ! at_least "$rust" "$rust_needed"; then
    lacks "Rust is $rust, $rust_needed or later is needed" "rustup update stable"
fi

if ! command -v "$PYTHON" >/dev/null; then
    lacks "there is no $PYTHON" "apt install python3 python3-venv, or name another: make setup PYTHON=python3.12"
elif ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    lacks "$("$PYTHON" --version) is too old: torch 2.15 needs 3.11 or later" \
        "install a later one and name it: make setup PYTHON=python3.12"
elif ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    lacks "$PYTHON cannot make virtual environments" "apt install python3-venv"
fi

[ "$missing" -eq 0 ] || exit 1
echo "Setting up .venv: about $NEEDED_GB GB with the CUDA build of torch, some minutes the first time."
