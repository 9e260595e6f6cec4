#!/usr/bin/env python3
"""The page of `fathom bench report` in a headless Chromium.

    tests/clients/report_check.py path/to/fathom [DIR]

Results of two workloads over concurrencies and rates are made here. Every chart must be drawn where
its values say, have a title and a table under it with the same values, in the light and the dark, on
a phone and on paper; nothing is asked of the net and the browser may log no error. With DIR
screenshots are put there.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import browser
import client_env

CONCURRENCIES = (1, 2, 4, 8, 16, 64)
RATES = (2, 5, 10)
FACES = ("paper", "card", "ink", "c0", "c1")  # colours that the schemes differ in

# What the page has drawn, chart by chart. A mark is a shape with the value in its title.
FIGURES = """[...document.querySelectorAll('figure')].map(f => {
    const svg = f.querySelector(':scope > svg'), box = svg.getBoundingClientRect();
    const inside = e => {
        const r = e.getBoundingClientRect();
        return r.left >= box.left - 1 && r.right <= box.right + 1
            && r.top >= box.top - 1 && r.bottom <= box.bottom + 1;
    };
    return {
        id: f.id,
        title: f.querySelector('h3').innerText,
        named: svg.getAttribute('aria-labelledby').split(' ')
            .map(id => document.getElementById(id).textContent),
        size: [box.width, box.height],
        legend: [...f.querySelectorAll('.legend li')].map(e => e.innerText.trim()),
        lines: [...svg.querySelectorAll('g > .line')].map(e => ({
            n_point: e.getAttribute('d').split(/[ML]/).length - 1,
            length: e.getTotalLength(),
            colour: getComputedStyle(e).stroke,
            inside: inside(e),
            marks: [...e.parentNode.querySelectorAll('title')].map(t => t.textContent),
        })),
        ticks: [...svg.querySelectorAll('text')].every(inside),
        head: [...f.querySelectorAll('thead th')].map(e => e.textContent),
        rows: [...f.querySelectorAll('tbody tr')].map(r => [...r.children].map(e => e.textContent)),
    };
})"""


def result(n_input, load, **more):
    """As `bench serve --save-result` writes it; figures that grow with the load, and p99 with it."""
    slow = 1 + n_input / 512
    rate = load["request_rate"]
    n = load["max_concurrency"] or rate
    served = min(rate, 8.0) if rate != "inf" else 40 * n / (n + 8) / slow
    figures = {"request_throughput": served, "output_throughput": 64 * served,
               "total_token_throughput": (64 + n_input) * served}
    for name, ms in (("ttft", 20), ("tpot", 2), ("itl", 2), ("e2el", 150)):
        figures[f"median_{name}_ms"] = ms * slow * (1 + n / 8)
        figures[f"p99_{name}_ms"] = 3 * figures[f"median_{name}_ms"]
    return {"backend": "openai", "label": "fathom", "model_id": "pilot <26M>", "input_len": n_input,
            "output_len": 64, "completed": 100, "failed": 0, "workload": f"random {n_input} in",
            "checks": {"littles_law_holds": True}, **load, **figures, **more}


def results():
    for n_input in (128, 1024):
        for n in CONCURRENCIES:
            one = result(n_input, {"max_concurrency": n, "request_rate": "inf"})
            middle = one["output_throughput"]
            yield one | {"repeats": 3, "spread": {"output_throughput": {
                "min": 0.9 * middle, "median": middle, "max": 1.2 * middle}}}
        for rate in RATES:
            yield result(n_input, {"max_concurrency": None, "request_rate": rate})


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.results = list(results())
        data = os.path.join(cls.folder.name, "results.jsonl")
        cls.file = os.path.join(cls.folder.name, "report.html")
        with open(data, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in cls.results)
        subprocess.run([PROGRAM, "bench", "report", data, "-o", cls.file, "--title", "A <b> & c"],
                       check=True, stdout=subprocess.DEVNULL, timeout=client_env.HANG_S)
        cls.url = "file://" + cls.file

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def open(self, **options):
        page = browser.Browser(**options)
        page.open(self.url)
        return page

    def assert_clean(self, page):
        page.run("new Promise(done => setTimeout(done, 50))")
        self.assertEqual(page.errors, [])
        self.assertEqual(page.requests, [self.url])

    def shoot(self, page, name, whole=False):
        if SHOTS:
            page.screenshot(os.path.join(SHOTS, name + ".png"), whole)

    def assert_drawn(self, figure):
        with self.subTest(figure["id"]):
            self.assertEqual(figure["named"][0], figure["title"])
            self.assertIn("table below", figure["named"][1])
            self.assertGreater(figure["size"][0], 250)
            self.assertGreater(figure["size"][1], 120)
            names = figure["head"][1:]
            self.assertEqual(figure["legend"][:len(names)], names)
            self.assertEqual(len(figure["lines"]), len(names))
            self.assertTrue(figure["ticks"], "a number lies outside the drawing")
            for i, line in enumerate(figure["lines"]):
                column = [row[1 + i] for row in figure["rows"] if row[1 + i]]
                self.assertTrue(line["inside"])
                self.assertGreater(line["length"], 20)
                self.assertGreaterEqual(line["n_point"], 3)
                self.assertEqual(len(line["marks"]), line["n_point"])
                self.assertEqual(len(column), line["n_point"])
            colours = {line["colour"] for line in figure["lines"]}
            self.assertEqual(len(colours), 2, "two workloads, two colours")

    def test_every_chart_is_drawn(self):
        with self.open() as page:
            figures = page.run(FIGURES)
            titles = [figure["title"] for figure in figures]
            for title in ("Throughput over concurrency", "Time to first token over concurrency",
                          "Inter-token latency over concurrency",
                          "Time to last token over concurrency",
                          "What a user gets against what the server gives",
                          "Served against offered rate", "Throughput over served rate",
                          "Time to first token over offered rate",
                          "Throughput over concurrency, up to 24"):
                self.assertIn(title, titles)
            self.assertEqual(len(set(titles)), len(titles))
            self.assertEqual(len({figure["id"] for figure in figures}), len(figures))
            for figure in figures:
                self.assert_drawn(figure)
            self.assertEqual(page.run("document.title"), "A <b> & c")
            self.assertEqual(page.run("document.querySelectorAll('.card').length"), 2)
            self.assertIn("pilot <26M>", page.run("document.body.innerText"))
            self.shoot(page, "report")
            self.assert_clean(page)

    def test_the_tables_hold_what_was_measured(self):
        with self.open() as page:
            figure = next(f for f in page.run(FIGURES) if f["title"] == "Throughput over concurrency")
            self.assertEqual([row[0] for row in figure["rows"]], [str(n) for n in CONCURRENCIES])
            column = figure["head"].index("1,024 in, output")
            for row, r in zip(figure["rows"],
                              (r for r in self.results if r["input_len"] == 1024)):
                value, low, high = (float(x.replace(",", ""))
                                    for x in row[column].replace("–", " ").split())
                want = r["output_throughput"]
                for got, near in ((value, want), (low, 0.9 * want), (high, 1.2 * want)):
                    self.assertAlmostEqual(got / near, 1, delta=0.01)
            page.click("figure summary")
            self.assertGreater(
                page.run("document.querySelector('figure table').getBoundingClientRect().height"), 50)
            points = page.run("[...document.querySelectorAll('main > .scroll tbody tr')]"
                              ".map(r => r.innerText)")
            self.assertEqual(len(points), len(self.results))
            self.assertTrue(all("sound" in point for point in points))
            self.assert_clean(page)

    def test_contents_lead_to_their_places(self):
        with self.open() as page:
            self.assertEqual(page.run(
                "[...document.querySelectorAll('nav a')].filter(a => !document.querySelector("
                "a.getAttribute('href'))).map(a => a.href)"), [])
            self.assertGreaterEqual(page.run("document.querySelectorAll('nav a').length"), 4)

    def faces(self, page):
        style = "getComputedStyle(document.documentElement).getPropertyValue('--%s')"
        return [page.run(style % name) for name in FACES]

    def test_light_and_dark(self):
        seen = []
        for dark in False, True:
            with self.open(dark=dark) as page:
                seen.append(self.faces(page))
                body = page.run("getComputedStyle(document.body).backgroundColor"
                                ".match(/\\d+/g).map(Number)")
                self.assertEqual(max(body) < 80, dark)
                ink = page.run("getComputedStyle(document.querySelector('h1')).color"
                               ".match(/\\d+/g).map(Number)")
                self.assertGreater(abs(sum(body) - sum(ink)), 450)
                self.shoot(page, "report-dark" if dark else "report-light", whole=True)
                self.assert_clean(page)
        for light, dark in zip(*seen):
            self.assertNotEqual(light, dark)

    def test_a_narrow_window_scrolls_down_only(self):
        with self.open() as page:
            for width in 320, 390, 768:
                page.resize(width, 800)
                for is_open in "false", "true":
                    page.run("document.querySelectorAll('details')"
                             f".forEach(d => d.open = {is_open})")
                    self.assertEqual(page.run("document.documentElement.scrollWidth"), width)
                for figure in page.run(FIGURES):
                    self.assertTrue(250 < figure["size"][0] <= width)
                self.shoot(page, f"report-{width}", whole=True)
            self.assert_clean(page)

    def test_on_paper(self):
        with self.open(dark=True) as page:
            screen = page.call("Page.printToPDF")["data"]
            self.assertGreater(len(screen), 10000)
            page.run("dispatchEvent(new Event('beforeprint'))")
            self.assertEqual(page.run("document.querySelectorAll('details:not([open])').length"), 0)
            page.call("Emulation.setEmulatedMedia", media="print")
            self.assertEqual(page.run("getComputedStyle(document.body).backgroundColor"),
                             "rgb(255, 255, 255)")
            self.assertEqual(page.run("getComputedStyle(document.querySelector('h1')).color"),
                             "rgb(0, 0, 0)")
            self.assertEqual(page.run("getComputedStyle(document.querySelector('nav')).display"),
                             "none")
            figures = page.run(FIGURES)
            for figure in figures:
                self.assert_drawn(figure)
            self.assertEqual(page.run("[...document.querySelectorAll('figure')].filter(f => "
                                      "getComputedStyle(f).breakInside != 'avoid').length"), 0)
            self.shoot(page, "report-paper", whole=True)
            self.assert_clean(page)


if __name__ == "__main__":
    PROGRAM, SHOTS = browser.arguments()
    unittest.main(argv=sys.argv[:1])
