"""A model hub in a thread, with faults: Hugging Face's interface and ModelScope's."""

import hashlib
import http.server
import json
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """files: {path: bytes}; large: those kept as LFS. `faults`: a list a path of what its next
    answers do instead: "cut" (half, then the connection ends), "busy", "broken", "wrong", "long",
    "all" (no ranges), "cut all" (both), "silent"."""

    def __init__(self, files, large=(), repository="org/name", token=None, gated=False):
        self.files, self.large, self.repository = files, set(large), repository
        self.token, self.gated = token, gated
        self.faults = {}
        self.asked = []  # (path, Range, Authorization)
        self.cdn_asked = []
        self.server, self.url = self.listen(self.answer)
        self.cdn, self.cdn_url = self.listen(self.answer_cdn)

    def listen(self, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):  # pylint: disable=invalid-name
                answer(self)

            def log_message(self, *args):  # pylint: disable=arguments-differ
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # clients that leave are part of the test
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server, f"http://127.0.0.1:{server.server_port}"

    def close(self):
        for server in (self.server, self.cdn):
            server.shutdown()
            server.server_close()

    @staticmethod
    def say(h, status, body=b"", **fields):
        h.send_response(status)
        for name, value in fields.items():
            h.send_header(name.replace("_", "-"), value)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)

    def listing(self):
        rows = []
        for path, data in self.files.items():
            row = {"rfilename": path, "size": len(data), "blobId": git_id(data)}
            if path in self.large:
                row["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data),
                              "pointerSize": 134}
            rows.append(row)
        return {"sha": COMMIT, "siblings": rows}

    def modelscope_listing(self):
        rows = [{"Path": path, "Name": path, "Size": len(data), "Type": "blob",
                 "Sha256": hashlib.sha256(data).hexdigest()} for path, data in self.files.items()]
        return {"Code": 200, "Success": True, "Data": {"Files": rows}}

    def fault(self, path):
        return self.faults[path].pop(0) if self.faults.get(path) else None

    def answer(self, h):
        url = urllib.parse.urlsplit(h.path)
        path = urllib.parse.unquote(url.path)
        query = urllib.parse.parse_qs(url.query)
        self.asked.append((path, h.headers.get("Range"), h.headers.get("Authorization")))
        if self.token and h.headers.get("Authorization") != "Bearer " + self.token:
            code = "GatedRepo" if self.gated else "RepoNotFound"
            self.say(h, 401, X_Error_Code=code)
        elif path.startswith(f"/api/models/{self.repository}/revision/"):
            revision = path.split("/revision/", 1)[-1]
            if revision not in ("main", COMMIT):
                self.say(h, 404, X_Error_Code="RevisionNotFound")
            elif self.fault_answer(h, "list"):
                pass
            else:
                self.say(h, 200, json.dumps(self.listing()).encode())
        elif path.startswith(f"/{self.repository}/resolve/{COMMIT}/"):
            name = path.split("/", 5)[-1]
            if name in self.large:
                self.say(h, 302, Location=self.cdn_url + "/" + urllib.parse.quote(name))
            else:
                self.send_file(h, name)
        elif path == f"/api/v1/models/{self.repository}/repo/files":
            self.say(h, 200, json.dumps(self.modelscope_listing()).encode())
        elif path == f"/api/v1/models/{self.repository}/repo":
            self.send_file(h, query["FilePath"][0])
        else:
            self.say(h, 404, X_Error_Code="RepoNotFound")

    def answer_cdn(self, h):
        name = urllib.parse.unquote(h.path[1:])
        self.cdn_asked.append((name, h.headers.get("Range"), h.headers.get("Authorization")))
        self.send_file(h, name)

    def fault_answer(self, h, name):
        """Answers with the next fault that is no data, and returns True; else returns the fault."""
        fault = self.fault(name)
        if fault == "busy":
            self.say(h, 429, Retry_After="1")
        elif fault == "broken":
            self.say(h, 503)
        elif fault == "silent":
            h.close_connection = True
            h.connection.close()
        else:
            return fault
        return True

    def send_file(self, h, name):
        data = self.files[name]
        fault = self.fault_answer(h, name)
        if fault is True:
            return
        begin = 0
        wanted = h.headers.get("Range")
        if wanted and fault not in ("all", "cut all"):
            begin = int(wanted.split("=")[1].split("-")[0])
        if begin > len(data) or (begin == len(data) and begin):
            self.say(h, 416)
            return
        body = data[begin:]
        if fault == "wrong":
            body = bytes(byte ^ 1 for byte in body[:1]) + body[1:]
        if fault == "long":
            body += b"more"
        h.send_response(206 if begin else 200)
        if begin:
            h.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        if fault in ("cut", "cut all"):
            h.wfile.write(body[:len(body) // 2])
            h.wfile.flush()
            h.close_connection = True
            h.connection.close()
            return
        h.wfile.write(body)
