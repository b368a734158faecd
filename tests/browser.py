"""A real browser for tests: Chromium through its debugging pipe, no driver needed."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BINARY = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)
# Chromium reads commands from descriptor 3 and answers on 4.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)

# Texts of one figure that lie on one another, in figures that can be seen.
OVERLAPS = """
[...document.querySelectorAll("svg.drawing")].flatMap(svg => {
  const boxes = [...svg.querySelectorAll("text")]
    .map(t => [t.textContent, t.getBoundingClientRect()])
    .filter(([, b]) => b.width > 0);
  return boxes.flatMap(([one, a], n) => boxes.slice(n + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
    .map(([other]) => one + " on " + other));
})
"""
OUTSIDE = """
[...document.querySelectorAll("figure svg.drawing text")]
  .filter(t => t.getBoundingClientRect().right > innerWidth).map(t => t.textContent)
"""
SIZES = """
[...document.querySelectorAll("figure svg.drawing, figure img")]
  .filter(figure => figure.checkVisibility())
  .map(figure => [figure.getBoundingClientRect(), ...(figure.querySelectorAll(".line"))]
    .map(part => part.getBoundingClientRect ? part.getBoundingClientRect() : part)
    .map(box => box.width))
"""


class Browser:
    """One tab, and the events that its page has reported."""

    def __init__(self, profile):
        (child_in, self.to), (self.answers, child_out) = _pipe(), _pipe()
        place = f"--user-data-dir={profile}"
        start = [sys.executable, "-c", START, str(child_in), str(child_out)]
        self.process = subprocess.Popen(
            [*start, BINARY, *OPTIONS, place],
            pass_fds=(child_in, child_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_in)
        os.close(child_out)
        self.buffer, self.calls, self.events, self.session = b"", 0, [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        tab = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = tab["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def open(self, page, width=1100, scheme="light"):
        """Open a file or an address; then `events` are those of its page alone."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])
        self.events = []
        url = page if isinstance(page, str) else page.as_uri()
        self.ask("Page.navigate", url=url)
        while not self.reported("Page.loadEventFired"):
            self._take()

    def reported(self, *methods):
        """What the page's events of these kinds hold."""
        return [e["params"] for e in self.events if e["method"] in methods]

    def wait(self, script, patience=20):
        """Wait until a script in the page gives something true, and return that."""
        end = time.monotonic() + patience
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)
        return value

    def press(self, key):
        """Press a key that is no letter, such as Tab."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        look = {"key": key, "windowsVirtualKeyCode": codes[key], "text": text}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **look)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **look)

    def run(self, script):
        """The value of a script in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def ask(self, method, **params):
        """The answer to one command."""
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._take()
            if answer.get("id") == self.calls:
                assert "error" not in answer, answer
                return answer["result"]

    def close(self):
        """End the browser and wait for it."""
        self.session = None
        self.ask("Browser.close")
        self.process.wait(timeout=20)
        os.close(self.to)
        os.close(self.answers)

    def _take(self, patience=30):
        """The next message, kept if it is an event."""
        end = time.monotonic() + patience
        while b"\0" not in self.buffer:
            rest = max(end - time.monotonic(), 0)
            ready, _, _ = select.select([self.answers], [], [], rest)
            received = os.read(self.answers, 1 << 20) if ready else b""
            if not received:
                raise RuntimeError("browser: it must answer; got nothing")
            self.buffer += received
        line, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message


def _pipe():
    """A pipe whose ends lie above the descriptors that Chromium is given."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(end)
    return ends
