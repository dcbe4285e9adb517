"""Stands between a run and a real vLLM, and changes what is asked of it."""
import http.server
import json
import pathlib
import shutil
import struct
import threading
import urllib.error
import urllib.request

VERSION = "version-"


class Between(http.server.ThreadingHTTPServer):
    """Forwards to `address` what `change(path, body)` makes of a request: a body, or None for one
    that is answered as the last one to that path was, and never sent."""

    daemon_threads = True

    def __init__(self, address, change):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind, self.change, self.answers = address, change, {}
        self.address = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        self.server_close()

    def ask(self, method, path, headers, body):
        changed = self.change(path, body)
        if changed is None:
            return self.answers[path]
        url = self.behind + path
        request = urllib.request.Request(url, changed or None, headers, method=method)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            kind = answer.headers.get("Content-Type")
            self.answers[path] = (answer.status, kind, answer.read())
        return self.answers[path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hop = ("host", "connection", "content-length", "accept-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in hop}
        status, kind, answer = self.server.ask(self.command, self.path, headers, body)
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = forward

    def log_message(self, *_):
        pass


def other_folder(body, replace):
    """A question to load weights, whose folder `replace` may change."""
    question = json.loads(body)
    folder = pathlib.Path(question["kwargs"]["weights_path"])
    question["kwargs"]["weights_path"] = str(replace(folder))
    return json.dumps(question).encode()


def version_of(folder):
    return int(folder.name.removeprefix(VERSION))


def without_tensors(folder, lost):
    """A copy of a model folder beside it, without the tensors for which `lost(name)`."""
    copy = folder.with_name(f"less-{folder.name}")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    file = copy / "model.safetensors"
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors, kept, bytes_kept = json.loads(data[8 : 8 + size]), {}, b""
    for name, tensor in tensors.items():
        if name == "__metadata__" or lost(name):
            continue
        begin, end = tensor["data_offsets"]
        place = [len(bytes_kept), len(bytes_kept) + end - begin]
        bytes_kept += data[8 + size + begin : 8 + size + end]
        kept[name] = {**tensor, "data_offsets": place}
    assert len(kept) < len(tensors), "nothing was lost"
    kept["__metadata__"] = {"format": "pt"}
    header = json.dumps(kept).encode()
    header += b" " * (-len(header) % 8)
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes_kept)
    return copy
