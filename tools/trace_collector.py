#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes spans by OTLP/HTTP JSON and shows each trace as a tree, equal parts added up.

For a look at a router's spans without a tracing system, and for tests. It prints where it listens,
then works until SIGINT or SIGTERM, and prints the traces at its end.

Usage: trace_collector.py [--listen HOST:PORT]
"""
import argparse
import http.server
import json
import signal
import sys
import threading

MAX_BODY_BYTES = 64 << 20


class Collector:
    """An HTTP server on a thread of its own that keeps all spans posted to it."""

    def __init__(self, host="127.0.0.1", port=0):
        self.code = 200  # of every answer
        self.lock = threading.Lock()
        self.resources = []
        self.kept = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                size = int(self.headers.get("Content-Length", 0))
                if size > MAX_BODY_BYTES or self.headers["Content-Type"] != "application/json":
                    self.send_error(400)
                    return
                collector.keep(json.loads(self.rfile.read(size)))
                self.send_response(collector.code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format, *args):
                pass

        self.server = http.server.ThreadingHTTPServer((host, port), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def url(self):
        host, port = self.server.server_address[:2]
        return f"http://{host}:{port}/v1/traces"

    def keep(self, message):
        with self.lock:
            for resource in message["resourceSpans"]:
                self.resources.append(attributes(resource["resource"]))
                for scope in resource["scopeSpans"]:
                    self.kept += scope["spans"]

    def spans(self):
        with self.lock:
            return list(self.kept)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def attributes(carrier):
    """The attributes of a span or resource, as Python values."""
    values = {}
    for attribute in carrier["attributes"]:
        (kind, value), = attribute["value"].items()
        values[attribute["key"]] = int(value) if kind == "intValue" else value
    return values


def milliseconds(span):
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6


def tree_lines(spans, known, indent=0):
    """Lines of spans beside each other: those of one name together, in the order of their begin."""
    by_name = {}
    for span in sorted(spans, key=lambda span: int(span["startTimeUnixNano"])):
        by_name.setdefault(span["name"], []).append(span)
    for name, group in by_name.items():
        label = "  " * indent + name + (f" ×{len(group)}" if len(group) > 1 else "")
        yield f"{label:<32} {sum(milliseconds(span) for span in group):10.3f} ms"
        children = [child for span in group for child in known.get(span["spanId"], [])]
        yield from tree_lines(children, known, indent + 1)


def describe(spans):
    """Every trace: its id and its tree."""
    for trace in dict.fromkeys(span["traceId"] for span in spans):
        own = {span["spanId"]: span for span in spans if span["traceId"] == trace}
        known = {}
        for span in own.values():
            known.setdefault(span.get("parentSpanId"), []).append(span)
        yield f"trace {trace}"
        roots = [span for span in own.values() if span.get("parentSpanId") not in own]
        yield from tree_lines(roots, known, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--listen", default="127.0.0.1:4318", metavar="HOST:PORT",
                        help="port 0 takes a free one; 127.0.0.1:4318")
    host, _, port = parser.parse_args().listen.rpartition(":")
    # Before there are threads, which inherit it: a shell's background job may ignore SIGINT.
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    collector = Collector(host, int(port))
    print(collector.url(), flush=True)
    signal.sigwait(signals)
    collector.close()
    for line in describe(collector.spans()):
        print(line)


if __name__ == "__main__":
    sys.exit(main())
