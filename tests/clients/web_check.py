#!/usr/bin/env python3
"""The web page at "/" in a headless Chromium, against the pilot model.

    tests/clients/web_check.py path/to/fathom [DIR]

A streamed answer, reasoning, a tool call and its result, stopping, settings, errors, the charts, a
phone, the dark scheme, and the API key. Nothing may be asked of another host and the browser may
log no error. With DIR screenshots are put there; a few other clients are then busy with the server,
so that its charts have something to show.
"""
import base64
import http.client
import json
import os
import random
import re
import sys
import threading
import time
import unittest

import browser
import client_env

TRAIN = ("Solve step by step: If a train travels 120km in 2 hours, and then 180km in 3 hours, what "
         "is the average speed?")
ANSWERS = "document.querySelectorAll('article.assistant')"
SHOT_S = 30  # of charts
DONE = f"{ANSWERS}.length == %d && !document.querySelector('article.open')"
LAST = f"{ANSWERS}[{ANSWERS}.length - 1]"

# text, formulas, those of them in lines of their own
FORMULAS = [("Inline \\(a^2\\) and $b_1$.", 2, 0),
            ("$$\\boxed{60}$$", 1, 1),
            ("So\n\\[ v = \\frac{300}{5} \\]\nis it.", 1, 1),
            ("\\[\n\\begin{aligned} x &= 1 \\\\ y &= 2 \\end{aligned}\n\\]", 1, 1),
            ("- of $x$\n- and $y$", 2, 0),
            ("not yet whole: $$\\frac{1}", 0, 0),
            ("`$x$` is code", 0, 0),
            ("wrong: $\\nosuchcommand{x}$", 0, 0)]


def say(page, text, n_answer):
    page.type("#text", text)
    page.click("#send")
    page.wait(DONE % n_answer)


def press(page, name):
    page.run(f"[...{LAST}.querySelectorAll('.foot button')].find(b => b.innerText == '{name}')"
             ".click()")


def shoot(page, name):
    if SHOTS:
        page.screenshot(os.path.join(SHOTS, name + ".png"))


class Load:
    """Other clients, each with one short request after another"""

    def __init__(self, port, n_client):
        self.port, self.over = port, threading.Event()
        self.clients = [threading.Thread(target=self.run, args=(random.Random(i),))
                        for i in range(n_client)]
        for client in self.clients:
            client.start()

    def run(self, draw):
        while not self.over.wait(draw.expovariate(2)):
            link = http.client.HTTPConnection("127.0.0.1", self.port)
            link.request("POST", "/v1/completions", json.dumps(
                {"prompt": [draw.randrange(400, 3000) for _ in range(draw.randrange(32, 1500))],
                 "max_tokens": draw.randrange(16, 300), "ignore_eos": True, "temperature": 1}))
            link.getresponse().read()

    def stop(self):
        self.over.set()
        for client in self.clients:
            client.join()


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = client_env.started_pilot(PROGRAM, "--disable-log-requests")
        cls.port = cls.server.__enter__()
        cls.url = f"http://127.0.0.1:{cls.port}/"
        cls.load = Load(cls.port, 5) if SHOTS else None

    @classmethod
    def tearDownClass(cls):
        if cls.load:
            cls.load.stop()
        cls.server.__exit__(None, None, None)

    def open(self, **options):
        page = browser.Browser(**options)
        page.open(self.url)
        page.wait("document.getElementById('model').value == 'pilot'")
        return page

    def assert_clean(self, page):
        page.run("new Promise(done => setTimeout(done, 50))")
        self.assertEqual(page.errors, [])
        foreign = [url for url in page.requests if not url.startswith(self.url)]
        self.assertEqual(foreign, [])

    def test_files(self):
        link = http.client.HTTPConnection("127.0.0.1", self.port)
        link.request("GET", "/")
        answer = link.getresponse()
        html = answer.read().decode()
        self.assertEqual(answer.getheader("Content-Type"), "text/html; charset=utf-8")
        self.assertIn("default-src 'none'", answer.getheader("Content-Security-Policy"))
        files = re.findall(r'(?:href|src)="(ui/[^"]+)"', html)
        self.assertEqual(len(files), 4)
        seen = set()
        while files:
            path = files.pop()
            seen.add(path)
            link.request("GET", "/" + path)
            answer = link.getresponse()
            text = answer.read().decode()
            self.assertEqual(answer.status, 200, path)
            more = re.findall(r'from "\./([^"]+)"', text)
            files += [f"ui/{name}" for name in more if f"ui/{name}" not in seen]
        self.assertEqual(len(seen), 9)
        link.request("GET", "/ui/nothing.js")
        answer = link.getresponse()
        self.assertEqual(answer.status, 404)
        self.assertIn(b"nothing.js", answer.read())

    def test_chat(self):
        with self.open() as page:
            say(page, "Hello, who are you?", 1)
            self.assertTrue(page.run(f"{LAST}.querySelector('.text').innerText").strip())
            self.assertRegex(page.run(f"{LAST}.querySelector('.foot').innerText"), r"tok/s")
            page.click("#show-settings")
            page.click("#thinking")
            page.click("#show-settings")
            say(page, TRAIN, 2)
            self.assertIn("60", page.run(f"{LAST}.querySelector('.text').innerText"))
            self.assertFalse(page.run(f"{LAST}.querySelector('details').open"))
            self.assertGreater(page.run(f"{LAST}.querySelector('.thought').textContent.length"), 10)
            self.assertIn("Thought for", page.run(f"{LAST}.querySelector('summary').innerText"))
            page.wait("document.querySelectorAll('#charts .line[d^=M]').length >= 4")
            if SHOTS:
                time.sleep(SHOT_S)
            shoot(page, "web")
            self.assert_clean(page)

    def test_tools(self):
        with self.open() as page:
            page.click("#show-settings")
            page.click("#sample-tool")
            page.click("#show-settings")
            say(page, "What is the weather in San Francisco?", 1)
            self.assertEqual(page.run(f"{LAST}.querySelector('.call h3').innerText"), "get_weather")
            self.assertIn("San Francisco", page.run(f"{LAST}.querySelector('.call pre').innerText"))
            page.type("form.results textarea", "{\"temperature_c\": 18}")
            page.click("form.results button")
            page.wait(DONE % 2)
            self.assertTrue(page.run(f"{LAST}.querySelector('.text').innerText").strip())
            shoot(page, "web-tools")
            self.assert_clean(page)

    def test_stop_again_new(self):
        with self.open() as page:
            page.type("#text", "Tell me a short story.")
            page.run("document.getElementById('temperature').value = 1")
            page.click("#send")
            page.wait(f"{ANSWERS}.length == 1")
            if page.run("!document.getElementById('stop').hidden"):
                page.click("#stop")
            page.wait("!document.querySelector('article.open')")
            press(page, "Again")
            page.wait(DONE % 1)
            page.click("#new")
            self.assertEqual(page.run("document.querySelectorAll('article').length"), 0)
            self.assert_clean(page)

    def test_errors_are_told(self):
        with self.open() as page:
            page.click("#show-settings")
            page.type("#max-tokens", "1000000000")
            page.click("#show-settings")
            page.type("#text", "hello")
            page.click("#send")
            page.wait("document.querySelector('article .error')")
            self.assertIn("max", page.run("document.querySelector('article .error').innerText"))
            page.click("#show-settings")
            page.run("document.getElementById('max-tokens').value = ''")
            page.type("#tools", "[1,")
            self.assertIn("not JSON", page.run("document.getElementById('settings-error').value"))
            page.run("document.getElementById('tools').value = ''")
            page.run("document.getElementById('settings').dispatchEvent(new Event('input'))")
            press(page, "Again")
            page.wait(DONE % 1)
            self.assertTrue(page.run(f"{LAST}.querySelector('.text').innerText").strip())

    def test_text_is_not_markup(self):
        with self.open() as page:
            script = """import('./ui/markdown.js').then(m => {
                const box = document.createElement('div');
                box.append(...m.render(%s));
                return box.innerHTML;
            })"""
            for text, html in MARKDOWN:
                self.assertEqual(page.run(script % json.dumps(text)), html)
            self.assert_clean(page)

    def test_formulas(self):
        script = """import('./ui/markdown.js').then(m => {
            const box = document.createElement('div');
            box.append(...m.render(%s));
            document.getElementById('conversation').append(box);
            return [box.querySelectorAll('math').length,
                    box.querySelectorAll('math.tml-display, math[display=block]').length,
                    box.innerText];
        })"""
        with self.open() as page:
            for text, n, n_display in FORMULAS:
                found, shown, _ = page.run(script % json.dumps(text))
                self.assertEqual((found, shown), (n, n_display), text)
            self.assertIn("$5 and $6", page.run(script % json.dumps("It costs $5 and $6."))[2])
            shoot(page, "web-formulas")
            self.assert_clean(page)

    def test_reload_keeps_the_conversation(self):
        shown = "[...document.querySelectorAll('article .body')].map(b => b.innerText)"
        with self.open() as page:
            say(page, "Hello, who are you?", 1)
            before = page.run(shown)
            self.assertEqual(len(before), 2)
            page.open(self.url)
            page.wait("document.querySelectorAll('article').length == 2")
            self.assertEqual(page.run(shown), before)
            self.assertTrue(page.run("document.getElementById('welcome').hidden"))
            say(page, "Tell me a short story.", 2)
            page.click("#new")
            page.open(self.url)
            page.wait("document.getElementById('state').className == 'up'")
            self.assertEqual(page.run("document.querySelectorAll('article').length"), 0)
            self.assert_clean(page)

    def test_tools_that_are_not_json_stop_a_message(self):
        with self.open() as page:
            page.click("#show-settings")
            page.type("#tools", "[{")
            page.click("#show-settings")
            page.type("#text", "Hello")
            page.click("#send")
            page.wait("!document.getElementById('settings').hidden")
            self.assertEqual(page.run("document.querySelectorAll('article').length"), 0)
            self.assertIn("not JSON", page.run("document.getElementById('settings-error').innerText"))
            self.assert_clean(page)

    def test_one_sample_is_drawn(self):
        first = "[...document.querySelectorAll('#charts figure')].find(f => f.innerText.includes('First token'))"
        with self.open() as page:
            page.wait("document.querySelectorAll('#charts .line[d^=M]').length >= 4")
            say(page, "Hello, who are you?", 1)
            page.wait(f"({first}).querySelector('.dots').getAttribute('d')?.startsWith('M')")
            self.assertRegex(page.run(f"({first}).querySelector('.scale').innerText"), r"^[\d.]+ ms$")
            page.wait("[...document.querySelectorAll('#charts .scale')].every(s => s.innerText)")
            time.sleep(2.5)  # a look without a sample
            self.assertRegex(page.run(f"({first}).querySelector('b').innerText"), r"\d ms$")
            shoot(page, "web-one-sample")
            self.assert_clean(page)

    def test_docs(self):
        with self.open() as page:
            page.open(self.url + "docs")
            page.wait("document.querySelectorAll('#paths h2').length > 20")
            self.assertRegex(page.run("document.getElementById('state').innerText"), r"^fathom \d")
            rows = page.run("[...document.getElementById('post/v1/chat/completions')"
                            ".nextElementSibling.nextElementSibling.rows].map(r => r.innerText)")
            self.assertIn("temperature\tnumber, 0 to 2", rows)
            self.assertIn("messages\tarray, needed", rows)
            shoot(page, "web-docs")
            self.assert_clean(page)

    def test_phone(self):
        with self.open(width=360, height=740, dark=True) as page:
            say(page, "Hello, who are you?", 1)
            self.assertEqual(page.run("document.documentElement.scrollWidth"), 360)
            tops = page.run("[...document.querySelectorAll('header button')]"
                            ".map(b => b.getBoundingClientRect().top)")
            self.assertEqual(len(set(tops)), 1, "the header has one row")
            self.assertLessEqual(
                page.run("document.getElementById('send').getBoundingClientRect().bottom"), 740)
            shoot(page, "web-phone")
            page.click("#show-load")
            page.wait("document.querySelector('#load').getBoundingClientRect().width > 300")
            if SHOTS:
                time.sleep(SHOT_S)
            shoot(page, "web-phone-load")
            self.assert_clean(page)

    def test_key(self):
        with client_env.started_pilot(PROGRAM, "--api-key", "s3cret") as port:
            link = http.client.HTTPConnection("127.0.0.1", port)
            for path in "/", "/ui/web.css", "/ui/none":
                link.request("GET", path)
                answer = link.getresponse()
                answer.read()
                self.assertEqual(answer.status, 401)
                self.assertTrue(answer.getheader("WWW-Authenticate").startswith("Basic"))
            login = base64.b64encode(b"any:s3cret").decode()
            wrong = base64.b64encode(b"any:s3creT").decode()
            link.request("GET", "/", headers={"Authorization": "Basic " + wrong})
            answer = link.getresponse()
            answer.read()
            self.assertEqual(answer.status, 401)
            with browser.Browser() as page:
                page.open(f"http://127.0.0.1:{port}/", {"Authorization": "Basic " + login})
                page.wait("document.getElementById('model').value == 'pilot'")
                say(page, "Hello, who are you?", 1)
                self.assertEqual(page.errors, [])


MARKDOWN = [
    ("a <b>x</b> & `<i>`", "<p>a &lt;b&gt;x&lt;/b&gt; &amp; <code>&lt;i&gt;</code></p>"),
    ("**b** *i* ~~s~~", "<p><strong>b</strong> <em>i</em> <s>s</s></p>"),
    ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
    ("2 * 3 * 4 and snake_case", "<p>2 * 3 * 4 and snake_case</p>"),
    ("# T\n\n- a\n- b\n  1. c", "<h3>T</h3><ul><li>a</li><li><p>b</p><ol start=\"1\"><li>c</li></ol>"
                                 "</li></ul>"),
    ("```c\nint a = 1 < 2;\n", "<pre><code data-language=\"c\">int a = 1 &lt; 2;\n</code></pre>"),
    ("| a | b |\n|---|---|\n| 1 | 2 |", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody>"
                                         "<tr><td>1</td><td>2</td></tr></tbody></table>"),
    ("> q\n> r", "<blockquote><p>q<br>r</p></blockquote>"),
]

if __name__ == "__main__":
    PROGRAM, SHOTS = browser.arguments()
    unittest.main(argv=sys.argv[:1])
