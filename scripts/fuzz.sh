#!/usr/bin/env bash
# Runs every fuzz target for a number of seconds, two at a time. The targets are cargo-fuzz's (fuzz/); they are built by
# this script, with the coverage that libFuzzer needs and without sanitizers (the code has no unsafe parts to check), so
# no nightly compiler is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
out=$PWD/target/fuzz
# The build folder is outside of the checkout, so that a clean checkout compiles only what has changed.
build=${XDG_CACHE_HOME:-$HOME/.cache}/uniference/fuzz
mkdir -p "$out"
# Without coverage flags, because none of these crates is fuzzed.
cargo run --quiet --locked --release --config crates/checked.toml --package uniference-programs --example fuzz_seeds "$out/corpus"
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# An explicit target keeps the flags from build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
# Versions are the workspace's; dependencies that only fuzzing needs are added.
cp Cargo.lock fuzz/Cargo.lock
cargo build --quiet --release --manifest-path fuzz/Cargo.toml --target-dir "$build" --target "$host" --bins
bin=$build/$host/release

fuzz() {
    mkdir -p "$out/found/$1"
    if ! "$bin/$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 \
        -artifact_prefix="$out/found/$1/" "$out/corpus/$1" >"$out/$1.log" 2>&1; then
        tail -40 "$out/$1.log"
        echo "fuzz target $1 failed: what it failed on is in $out/found/$1; run it again with $bin/$1 FILE"
        return 1
    fi
    echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$1.log") inputs, nothing found"
}
export -f fuzz
export out bin seconds
targets=$(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' fuzz/Cargo.toml)
xargs -n 1 -P 2 bash -c 'fuzz "$0" || exit 255' <<<"$targets"
