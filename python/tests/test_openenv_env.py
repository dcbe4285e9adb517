"""The OpenEnv client of share/environments, with a websockets of its own: how it connects, and what
it says where it cannot. tests/environments/peers_test.py plays with a real server."""
import http.server
import json
import os
import subprocess
import sys
import threading

from tests.support import ROOT, FolderTest

PROGRAM = str(ROOT / "share/environments/openenv_env.py")

# As later versions have it: what connect() gives has to be entered.
WEBSOCKETS = '''
import json

class connect:
    def __init__(self, address, max_size):
        if "REFUSE" in __import__("os").environ:
            raise OSError("refused")
    def __enter__(self):
        return Socket()
    def __exit__(self, *error):
        print("the connection is left", flush=True)

class Socket:
    def send(self, text):
        pass
    def recv(self, timeout):
        return json.dumps({"type": "observation", "data": {"observation": {}, "reward": 0.5}})
'''


class Schema(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"action": {}}')

    def log_message(self, *arguments):
        pass


class OpenEnvTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("websockets/sync/client.py", WEBSOCKETS)

    def play(self, url, **variables):
        requests = [{"retort_environment": 1, "episodes": 1}, {"open": 1, "row": {}, "seed": 7},
                    {"close": 1}]
        environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": str(self.folder), **variables}
        program = subprocess.Popen(
            [sys.executable, "-S", PROGRAM, url], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(program.kill)
        answers = []
        try:
            for request in requests:
                program.stdin.write(json.dumps(request) + "\n")
                program.stdin.flush()
                answers.append(json.loads(program.stdout.readline() or "null"))
        except BrokenPipeError:
            pass  # it ended before
        _, errors = program.communicate(timeout=60)
        return program.returncode, answers, errors

    def serve(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), Schema)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return f"127.0.0.1:{server.server_port}"

    def test_connections_are_entered_and_left(self):
        code, answers, errors = self.play(f"http://{self.serve()}")
        self.assertEqual(code, 0, errors)
        self.assertEqual(answers[2], {"close": 1, "reward": 0.5})
        self.assertIn("the connection is left", errors)

    def test_errors_name_the_address(self):
        address = self.serve()
        _, answers, _ = self.play(f"http://{address}", REFUSE="1")
        self.assertEqual(answers[1]["error"], f"ConnectionError: ws://{address}/ws: refused")
        for url in ("http://127.0.0.1:1", "localhost"):
            code, _, errors = self.play(url)
            self.assertEqual(code, 1)
            self.assertTrue(errors.startswith(f"openenv_env: {url}/schema: "), errors)
            self.assertNotIn("Traceback", errors)
