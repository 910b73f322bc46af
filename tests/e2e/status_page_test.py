# SPDX-License-Identifier: Apache-2.0
"""The router's status page in a real browser, after known traffic."""
import http.server
import os
import re
import shutil
import subprocess
import tempfile
import threading
import unittest
import zlib

import programs
from routing_test import Cluster

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTH, HEIGHT = 1200, 1600


def pixels(png):
    """The rows of an 8-bit RGB or RGBA PNG without interlace, as bytes of RGB."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, header = 8, b"", None
    while at < len(png):
        size = int.from_bytes(png[at:at + 4], "big")
        kind, body = png[at + 4:at + 8], png[at + 8:at + 8 + size]
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            data += body
        at += size + 12
    width, height = (int.from_bytes(header[i:i + 4], "big") for i in (0, 4))
    assert header[8] == 8 and header[9] in (2, 6) and header[12] == 0, header
    depth = 3 if header[9] == 2 else 4
    raw, stride, rows = zlib.decompress(data), width * depth, []
    above = bytearray(stride)
    for y in range(height):
        line = bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        rule = raw[y * (stride + 1)]
        for x in range(stride):
            left = line[x - depth] if x >= depth else 0
            corner = above[x - depth] if x >= depth else 0
            up = above[x]
            if rule == 4:
                guess = left + up - corner
                add = min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                          (abs(guess - corner), 2, corner))[2]
            else:
                add = (0, left, up, (left + up) // 2)[rule]
            line[x] = (line[x] + add) & 255
        rows.append(b"".join(bytes(line[x:x + 3]) for x in range(0, stride, depth)))
        above = line
    return rows


class StatusPageTest(unittest.TestCase):
    """One cluster that has served; the browser comes for each test."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        http_port = cls.cluster.router.ports["http"]
        cls.url = f"http://{http_port}/status"

        def has_history():
            cls.cluster.generate("--prompt", "And the king said to them", "--max-tokens", "64",
                                 "--ignore-eos")
            return programs.fetch(http_port, "/status")[1].count("<svg") == 2

        if not programs.wait_until(has_history, 30):
            raise AssertionError("the page shows no layer over time")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def browse(self, url, *flags):
        done = subprocess.run(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
             f"--user-data-dir={os.path.join(self.folder.name, 'profile')}",
             f"--window-size={WIDTH},{HEIGHT}", "--timeout=5000", *flags, url],
            capture_output=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode("utf-8", "replace"))
        return done.stdout.decode("utf-8")

    def test_the_browser_finds_every_part_of_the_page(self):
        dom = self.browse(self.url, "--dump-dom")
        services = re.findall(r"<td>(router|expert|attention)</td><td class=\"good\">usable</td>",
                              dom)
        self.assertEqual(sorted(services), ["attention", "expert", "expert", "router"])
        charts = re.findall(r"<svg.*?</svg>", dom, re.DOTALL)
        self.assertEqual(len(charts), 2, "the load of every expert, and one layer over time")
        # The demo has 5 layers of 32 routed experts, each a cell of its own.
        self.assertEqual(charts[0].count("h1v1h-1z"), 5 * 32)
        self.assertIn("every answer", dom)
        self.assertNotIn("<script", dom)

    def test_the_page_asks_nobody_but_the_router(self):
        asked = []

        class Proxy(http.server.BaseHTTPRequestHandler):
            """Hears of every request that would leave for another host."""

            def note(self):
                asked.append(self.path)
                self.send_error(502)

            do_GET = do_CONNECT = do_POST = note

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            host = self.url.split("/")[2]
            self.browse(self.url, "--dump-dom",
                        f"--proxy-server=127.0.0.1:{proxy.server_port}",
                        f"--proxy-bypass-list=<-loopback>;{host}")
            proxy.shutdown()
        # The browser's own house-keeping is none of the page's business.
        own = [path for path in asked if "google" not in path and "gvt1" not in path]
        self.assertEqual(own, [])

    def test_the_picture_shows_cells_of_several_shades(self):
        picture = os.path.join(self.folder.name, "page.png")
        self.browse(self.url, f"--screenshot={picture}")
        with open(picture, "rb") as file:
            rows = pixels(file.read())
        self.assertEqual((len(rows[0]) // 3, len(rows)), (WIDTH, HEIGHT))
        counts = {}
        for row in rows[::4]:
            for x in range(0, len(row), 12):
                color = row[x:x + 3]
                counts[color] = counts.get(color, 0) + 1
        # The shades of the style's s1 to s4 on a light page: what each step of load is drawn in.
        for shade in ("cfe0f2", "9dc3e6", "5a9bd4"):
            self.assertGreater(counts.get(bytes.fromhex(shade), 0), 20, shade)


if __name__ == "__main__":
    if BROWSER is None:
        programs.skip("chromium is not on this machine")
    unittest.main()
