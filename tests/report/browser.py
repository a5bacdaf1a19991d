"""A headless Chromium over its DevTools pipe, with the standard library alone: what a reader sees, clicks and types.

https://chromedevtools.github.io/devtools-protocol/: messages are JSON objects, each closed by a zero byte; the browser
reads them from file 3 and answers on file 4 (`--remote-debugging-pipe`).

    python tests/report/browser.py PAGE.html PICTURE.png [WIDTH [HEIGHT]] [dark]     a picture of a page
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe"
)
PATIENCE = 120  # seconds for one answer


class Browser:
    """One browser with one page; `console` and `asked` grow while it is used."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        (theirs, self._send), (self._hear, answers) = os.pipe(), os.pipe()
        log = str(profile.with_suffix(".log"))
        flags = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs, 3 + 97),  # first out of the way: the pipes may be files 3 and 4 themselves
            (os.POSIX_SPAWN_DUP2, answers, 4 + 97),
            (os.POSIX_SPAWN_DUP2, 3 + 97, 3),
            (os.POSIX_SPAWN_DUP2, 4 + 97, 4),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self._pid = os.posix_spawn(CHROMIUM, flags, os.environ, file_actions=actions, setpgroup=0)
        os.close(theirs)
        os.close(answers)
        self._rest, self._count, self._session = b"", 0, ""
        self.console: list[str] = []  # messages, exceptions and what the browser itself complains about
        self.asked: list[str] = []  # addresses that were requested
        self._loaded = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """A page from the disk, in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        before = self._loaded
        self.call("Page.navigate", url=page.as_uri())
        while self._loaded == before:
            self._message()

    def ask(self, script: str) -> Any:
        """The value of an expression in the page; a policy of the page against scripts does not bind this one."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """A key, as from a keyboard: the browser decides what it does."""
        code = {"Tab": 9, "Enter": 13, " ": 32}[key]
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of an element, which is scrolled to first."""
        find = f"document.querySelector({json.dumps(selector)})"
        middle = f"(b => [b.x + b.width / 2, b.y + b.height / 2])({find}.getBoundingClientRect())"
        x, y = self.ask(f"{find}.scrollIntoView({{block: 'center', behavior: 'instant'}}), {middle}")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, out: Path, height: int | None = None) -> None:
        """The whole page, however long, or so much of its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        out.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])
        )

    def close(self) -> None:
        os.killpg(self._pid, signal.SIGKILL)  # the group that this object started, and nothing else
        os.waitpid(self._pid, 0)
        os.close(self._send)
        os.close(self._hear)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its answer."""
        self._count += 1
        number = self._count
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (told := self._message()).get("id") != number:
            pass
        assert "error" not in told, (method, told["error"])
        return dict(told["result"])

    def _message(self) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._hear], [], [], max(end - time.monotonic(), 0))
            more = os.read(self._hear, 1 << 20) if ready else b""
            if not more:
                raise RuntimeError(f"Chromium said nothing for {PATIENCE} s, or ended")
            self._rest += more
        raw, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(raw)
        self._note(told.get("method", ""), told.get("params", {}))
        return told

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(json.dumps(params))


def main(page: str, out: str, *more: str) -> None:
    sizes = [int(text) for text in more if text.isdecimal()]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(Path(folder) / "profile")
        try:
            browser.open(Path(page).resolve(), sizes[0] if sizes else 1280, dark="dark" in more)
            browser.picture(Path(out), sizes[1] if len(sizes) > 1 else None)
        finally:
            browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
