"""A headless Chromium, driven over its debugging pipe; no package beside Python's own is needed.

    with Browser(width=390, height=844) as page:
        page.open("http://127.0.0.1:8000/")
        page.wait("document.querySelectorAll('article').length == 2")
        page.screenshot("page.png")

Messages are JSON ended by NUL: commands go to the browser's descriptor 3, answers and events come
from its descriptor 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

import client_env

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


def find():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def arguments():
    """The program and the folder for screenshots (None: none) of a check's command line; without a
    Chromium the check ends as skipped."""
    if not find():
        client_env.skip("no Chromium is installed")
    return sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None


class BrowserError(Exception):
    """The browser, or a script in the page, failed."""


class Browser:
    """One browser with one page. Errors that the page logs or throws are kept in `errors`."""

    def __init__(self, width=1280, height=800, dark=False, timeout_s=client_env.HANG_S):
        self.timeout_s = timeout_s
        self.errors = []
        self.requests = []  # every address that the page asked for
        self._n_sent = 0
        self._buffer = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._start()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def _start(self):
        self._session = None
        command_read, self._out = os.pipe()
        self._in, answer_write = os.pipe()
        program = find()
        if not program:
            raise BrowserError("no Chromium is installed")

        def take_3_and_4():
            # Through numbers above both, so that neither copy overwrites the other's source.
            low = (os.dup2(command_read, 100), os.dup2(answer_write, 101))
            os.dup2(low[0], 3)
            os.dup2(low[1], 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
                 "--user-data-dir=" + self._profile.name]
        self._process = subprocess.Popen(
            [program, *flags], preexec_fn=take_3_and_4, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(command_read)
        os.close(answer_write)

    def close(self):
        """End the browser, whatever it does."""
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- protocol ------------------------------------------------------------------------------

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise BrowserError("the browser did not answer in time")
            data = os.read(self._in, 1 << 16)
            if not data:
                raise BrowserError("the browser has gone")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details["text"]
            self.errors.append(text)
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            self.errors.append(f"{entry['text']} ({entry.get('url', '')})")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def _call(self, method, **params):
        self._n_sent += 1
        message = {"id": self._n_sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data):]
        deadline = time.monotonic() + self.timeout_s
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._n_sent:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def call(self, method, **params):
        """A command of the debugging protocol, to the page."""
        return self._call(method, **params)

    # ---- the page ------------------------------------------------------------------------------

    def resize(self, width, height):
        """The size of the window; below 500 a phone's, with touch."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def open(self, url, headers=None):
        """Go to an address and wait until it has loaded. `headers` are sent with every request."""
        if headers:
            self.call("Network.setExtraHTTPHeaders", headers=headers)
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise BrowserError(f"{url}: {failed}")
        self.wait("document.readyState == 'complete'")

    def run(self, script):
        """The value of an expression in the page; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def wait(self, condition, timeout_s=None):
        """Wait until an expression is true."""
        end = time.monotonic() + (timeout_s or self.timeout_s)
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise BrowserError("never true: " + condition)
            time.sleep(0.02)

    def type(self, selector, text):
        """Put text into a field as if typed."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def click(self, selector):
        """A mouse click in the middle of an element, which must be visible."""
        box = self.run("(() => {const e = document.querySelector(%s);"
                       "e.scrollIntoView({block: 'nearest'});"
                       "const r = e.getBoundingClientRect();"
                       "return [r.x + r.width / 2, r.y + r.height / 2, r.width * r.height]})()"
                       % json.dumps(selector))
        if not box[2]:
            raise BrowserError(selector + " is not visible")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)

    def screenshot(self, path, whole=False):
        """A PNG of the window, or of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
