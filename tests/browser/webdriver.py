"""Headless Chromium, driven through ChromeDriver with the requests of the WebDriver protocol (W3C) that the tests need."""

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TIMEOUT_S = 120
FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    # Names are not resolved, so pages can only reach this machine.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def missing() -> str | None:
    """The reason why no browser is available; None if one is."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (Debian: apt-get install chromium chromium-driver)" if absent else None


class Browser:
    """A browser of its own, with an empty profile. Use it as a context."""

    def __enter__(self) -> "Browser":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._profile = tempfile.mkdtemp()
        self._driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        self._address = f"http://127.0.0.1:{port}"
        try:
            self._await_driver()
            arguments = [*FLAGS, f"--user-data-dir={self._profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
            wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
            wanted["timeouts"] = {"script": 1000 * TIMEOUT_S}
            session = self._request("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{session['sessionId']}"
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._request("DELETE", self._session)
        finally:
            self._stop()

    def open(self, page: Path | str, *, width: int = 1280, dark: bool = False) -> None:
        """Opens a file, or an address of this machine; `width` is the window's width in CSS pixels."""
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", features=[theme])
        self._resize(width, 900)
        self._request(
            "POST", f"{self._session}/url", {"url": page if isinstance(page, str) else page.resolve().as_uri()}
        )

    def run(self, script: str) -> Any:
        """Runs a function with this body in the page; returns its result."""
        return self._request("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def result(self, script: str, *arguments: object) -> Any:
        """Runs a function with this body and these `arguments` in the page; returns the value that it passes to
        `done`."""
        text = f"const done = arguments[arguments.length - 1];\n{script}"
        return self._request("POST", f"{self._session}/execute/async", {"script": text, "args": arguments})

    def complaints(self) -> list[str]:
        """Errors and warnings on the console since the last call."""
        log = self._request("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("WARNING", "SEVERE")]

    def photograph(self, picture: Path) -> None:
        """Writes a PNG of the whole page."""
        size = self.run("const page = document.documentElement; return [page.clientWidth, page.scrollHeight]")
        self._resize(size[0], size[1])
        picture.write_bytes(base64.b64decode(self._devtools("Page.captureScreenshot")["data"]))

    def _resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def _devtools(self, command: str, **parameters: object) -> Any:
        return self._request("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _await_driver(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._request("GET", "/status")
                return
            except urllib.error.URLError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _request(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.read().decode()}") from error

    def _stop(self) -> None:
        self._driver.terminate()
        self._driver.wait()
        shutil.rmtree(self._profile, ignore_errors=True)
