"""Draws a part of a run's timeline as an SVG: compute, waits for late peers and waits for the network, a row per rank.

python scripts/timeline.py RUN FROM_MS TO_MS OUT.svg

docs/timeline.svg is `train.py` of docs/tutorial/your-own-script.md, from 1420 to 1980 ms.
"""

import json
import sys
from pathlib import Path
from typing import Any

WIDTH, LEFT, ROW, BAR, TOP = 860, 90, 30, 22, 34
COLOURS = {"compute": "#3b76b5", "late peer": "#f3c178", "network": "#d9752b"}
# Legible on the site's light and dark pages alike.
TEXT = "#808080"


def main() -> None:
    run, begin, end, out = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name" and "rank" in e["args"]["name"]}
    rows = {pid: row for row, pid in enumerate(sorted(names))}
    scale = (WIDTH - LEFT - 10) / (end - begin)
    height = TOP + ROW * len(rows) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
    ]
    for number, (label, colour) in enumerate(COLOURS.items()):
        parts.append(f'<rect x="{LEFT + 150 * number}" y="8" width="12" height="12" fill="{colour}"/>')
        text = {"late peer": "waits for a late peer", "network": "waits for the network"}.get(label, label)
        parts.append(f'<text x="{LEFT + 150 * number + 17}" y="18" fill="{TEXT}">{text}</text>')
    for pid, row in rows.items():
        y = TOP + ROW * row + BAR * 0.7
        parts.append(
            f'<text x="{LEFT - 8}" y="{y}" text-anchor="end" fill="{TEXT}">{names[pid].split("(")[1][:-1]}</text>'
        )
    for event in events:
        if event["ph"] == "X" and event["pid"] in rows and event["tid"] <= len(rows):
            for label, start, duration in pieces(event):
                left, right = max(start, begin), min(start + duration, end)
                if right - left > 0.05:
                    x, y = LEFT + (left - begin) * scale, TOP + ROW * rows[event["pid"]]
                    width = (right - left) * scale
                    parts.append(
                        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[label]}"/>'
                    )
    for tick in range(0, int(end - begin) + 1, 100):
        x, y = LEFT + tick * scale, height - 6
        parts.append(f'<text x="{x:.0f}" y="{y}" text-anchor="middle" fill="{TEXT}">{tick} ms</text>')
    out.write_text("\n".join([*parts, "</svg>"]) + "\n")


def pieces(event: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Coloured parts of an event of a rank's thread, in ms: in a wait, the time for a late peer comes first."""
    start, duration = event["ts"] / 1e3, event["dur"] / 1e3
    if event["name"] == "compute":
        return [("compute", start, duration)]
    if not event["name"].startswith("wait: ") or event["name"] == "wait: store":
        return []
    late = event["args"]["late_peer_us"] / 1e3
    return [("late peer", start, late), ("network", start + late, duration - late)]


if __name__ == "__main__":
    main()
