"""A headless Chromium that looks at pages and keeps pictures of them.

It is driven by its DevTools protocol, over the websockets that Prefect brings along.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from websockets.sync.client import ClientConnection, connect

from tests.waiting import wait_for

WIDTH_PX = 1440
PATIENCE_S = 90
MOUSE = "primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"
"""Without a mouse, charts show the buttons that one would bring up."""
COLORS = 128
"""A page has few; a PNG of these is small."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that nobody has used before. Raises RuntimeError if none is installed."""
    if shutil.which("chromium") is None:
        raise RuntimeError("no chromium here: apt-get install chromium fonts-dejavu-core")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-dev-shm-usage", "--no-first-run", "--lang=en"),
            f"--blink-settings={MOUSE}",
            *(f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                with connect(_address(Path(profile)), max_size=None) as connection:
                    yield Browser(connection)
            finally:
                process.terminate()


def _address(profile: Path) -> str:
    """The websocket of the one page that the browser has opened."""
    written = profile / "DevToolsActivePort"
    port, *_ = wait_for(lambda: written.exists() and written.read_text().split(), PATIENCE_S)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE_S) as answer:
        (page,) = (one for one in json.load(answer) if one["type"] == "page")
    return str(page["webSocketDebuggerUrl"])


class Browser:
    """One page of a browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.resize(900)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol; events are passed over."""
        self._number += 1
        self._connection.send(
            json.dumps({"id": self._number, "method": method, "params": parameters})
        )
        while True:
            answer = json.loads(self._connection.recv(PATIENCE_S))
            if answer.get("id") == self._number:
                break
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def resize(self, height_px: int) -> None:
        """Make the window so high; its width stays."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=WIDTH_PX,
            height=height_px,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, script: str) -> Any:
        """What a line of JavaScript gives."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def keep(self, items: Mapping[str, str]) -> None:
        """Put items into the storage that the present page's address has in the browser."""
        for key, value in items.items():
            self.run(f"localStorage.setItem({json.dumps(key)}, {json.dumps(value)})")

    def open(self, url: str) -> None:
        """Go to an address, by way of an empty page: another text after `#` would load nothing."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''") or "")

    def wait_for_texts(self, *texts: str) -> None:
        """Wait until the page shows them all."""

        def missing() -> list[str]:
            shown = self.text()
            return [text for text in texts if text not in shown]

        wait_for(lambda: not missing(), PATIENCE_S, lambda: f"no {missing()} in:\n{self.text()}")

    def click(self, text: str) -> None:
        """Click each innermost element that shows this text and no other, once there is one."""
        path = f"//*[normalize-space(.)={json.dumps(text)} and not(*[normalize-space(.)!=''])]"
        ordered = "XPathResult.ORDERED_NODE_SNAPSHOT_TYPE"
        self.run(
            "window.foundByText = () => { "
            f"const all = document.evaluate({json.dumps(path)}, document, null, {ordered}); "
            "return Array.from({length: all.snapshotLength}, (_, i) => all.snapshotItem(i)); }"
        )
        wait_for(lambda: self.run("foundByText().length > 0"), PATIENCE_S, lambda: f"no {text}")
        self.run("foundByText().forEach(one => one.click())")

    def scroll_to_top(self) -> None:
        """Scroll the page, and all that scrolls in it, to where it begins."""
        self.run("document.querySelectorAll('*').forEach(one => { one.scrollTop = 0 })")

    def picture(self) -> Image.Image:
        shot = self.call("Page.captureScreenshot", format="png")
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def settled(self) -> Image.Image:
        """The window once two pictures of it, half a second apart, are the same."""
        shots = [self.picture()]

        def is_still() -> bool:
            time.sleep(0.5)
            shots.append(self.picture())
            return shots[-1] == shots[-2]

        wait_for(is_still, PATIENCE_S)
        return shots[-1]


def save(picture: Image.Image, file: Path) -> None:
    few = picture.quantize(COLORS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)
