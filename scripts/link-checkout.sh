#!/usr/bin/env bash
# Lets an environment's Python import this checkout's package, with its entry points, without an installation: `link-checkout.sh PYTHON`.
set -euo pipefail
cd "$(dirname "$0")/.."
site=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$PWD/python" >"$site/uniference.pth"
about=$site/uniference-0.dist-info
mkdir -p "$about"
printf 'Metadata-Version: 2.1\nName: uniference\nVersion: 0\n' >"$about/METADATA"
# Tables [project.entry-points.GROUP] of pyproject.toml are sections [GROUP].
sed -n '/^\[project\.entry-points\./,/^$/p' pyproject.toml | sed 's/^\[project\.entry-points\./[/; s/[]"]//g; s/\[.*/&]/' >"$about/entry_points.txt"
