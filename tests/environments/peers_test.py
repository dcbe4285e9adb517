"""The programs of share/environments, each with a whole episode against the package that it is for,
served on this host.

    RETORT_ENVIRONMENTS_PYTHON=.../bin/python python3 peers_test.py [NAME ...]

That Python has mcp, openenv-core, websockets, uvicorn; a test whose packages are missing is
skipped, and all being skipped is 77. The calculator needs none.
"""
import json
import os
import pathlib
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARE = ROOT / "share/environments"
PYTHON = os.environ.get("RETORT_ENVIRONMENTS_PYTHON", sys.executable)
PATIENCE = 240  # seconds
SKIPPED = 77

MCP_SERVER = '''
import os, sys
try:
    from mcp.server.fastmcp import FastMCP
except ImportError:
    from mcp.server.mcpserver import MCPServer as FastMCP

server = FastMCP("counter")
total = 0

@server.tool()
def add(amount: int) -> int:
    """Adds to the counter."""
    global total
    total += amount
    print("the server prints", file=sys.stderr)
    return total

@server.tool()
def seed() -> str:
    """The seed of the group."""
    return os.environ["RETORT_SEED"]

@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no such thing")

server.run("stdio")
'''

OPENENV_SERVER = '''
import sys
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

class Guess(Action):
    """Guesses the number."""
    number: int

class Hint(Observation):
    hint: str

class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.secret = None
        self.steps = 0

    def reset(self, seed=None, episode_id=None, highest=10, **_):
        self.secret = seed % highest
        self.steps = 0
        return Hint(hint=f"a number below {highest}", done=False, reward=None)

    def step(self, action, timeout_s=None, **_):
        self.steps += 1
        found = action.number == self.secret
        hint = "found" if found else "higher" if action.number < self.secret else "lower"
        return Hint(hint=hint, done=found, reward=1.0 if found else -0.25)

    @property
    def state(self):
        return State(step_count=self.steps)

app = create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=8)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
'''


def has(*modules):
    """Whether that Python can import them."""
    code = f"import importlib.util as i, sys; sys.exit(not all(map(i.find_spec, {modules!r})))"
    return subprocess.run([PYTHON, "-c", code]).returncode == 0


class Dialogue:
    """An environment that runs, asked one line at a time."""

    def __init__(self, test, *command):
        self._program = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        test.addCleanup(self.end)
        test.assertEqual(self.ask({"retort_environment": 1, "episodes": 4}),
                         {"retort_environment": 1, "user_turns": False})

    def _read(self):
        for line in self._program.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def send(self, request):
        self._program.stdin.write(json.dumps(request).encode() + b"\n")
        self._program.stdin.flush()

    def next(self):
        return self._lines.get(timeout=PATIENCE)

    def ask(self, request):
        self.send(request)
        return self.next()

    def open(self, number, seed=5, **row):
        return self.ask({"open": number, "row": row, "seed": seed})

    def step(self, number, *calls):
        listed = [{"id": f"c{i}", "name": name, "arguments": arguments}
                  for i, (name, arguments) in enumerate(calls)]
        return self.ask({"step": number, "turn": 1, "text": "", "calls": listed})

    def end(self):
        self._program.stdin.close()
        try:
            self._program.wait(30)
        finally:
            self._program.kill()


def contents(answer):
    return [message["content"] for message in answer["messages"]]


class PeersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def need(self, *modules):
        if not has(*modules):
            self.skipTest(f"{PYTHON} has not all of {', '.join(modules)}")

    def test_calculator(self):
        tools = Dialogue(self, sys.executable, ROOT / "python/retort_env.py", "--tools",
                         SHARE / "calculator.py")
        opened = tools.open(1)
        self.assertEqual([tool["function"]["name"] for tool in opened["tools"]], ["calculate"])
        cases = [("1/4", "0.25"), ("0.1 + 0.2", "0.3"), ("(1 + 2) / 9", "1/3"), ("-1/8", "-0.125"),
                 ("2**100", str(2**100)), ("7 // 2 - 7 % 4", "0"), ("10**-3", "0.001"),
                 ("1e3 * 1.5", "1500")]
        answer = tools.step(1, *(("calculate", {"expression": text}) for text, _ in cases))
        self.assertEqual(contents(answer), [result for _, result in cases])
        bad = ["1 +", "__import__('os')", "9**9**9", "1e999999999", "1/0", "0**-1", "2**0.5",
               "x", "(" * 5000, "-" * 900 + "1" * 101, "True", "'a' * 9"]
        answer = tools.step(1, *(("calculate", {"expression": text}) for text in bad))
        self.assertEqual(answer["failed_calls"], len(bad), contents(answer))

    def test_calculator_that_scores(self):
        tools = Dialogue(self, sys.executable, ROOT / "python/retort_env.py",
                         f"{SHARE / 'calculator.py'}:Calculator")
        alone = Dialogue(self, sys.executable, ROOT / "python/retort_env.py", "--tools",
                         SHARE / "calculator.py")
        cases = [("6 * 7", "42", 1.0), ("6 * 7", 42, 1.0), ("6 * 7", "42.0", 1.0),
                 ("6 * 8", "42", 0.0), ("6 *", "42", 0.0), ("1/3", "2/6", 1.0)]
        for number, (expression, answer, reward) in enumerate(cases):
            opened = tools.open(number, answer=answer, messages=[])
            self.assertEqual(opened["tools"], alone.open(number)["tools"])
            tools.step(number, ("calculate", {"expression": expression}))
            self.assertEqual(tools.ask({"close": number}), {"close": number, "reward": reward})

        # The last of several results counts, a call that fails has none, and neither has an episode
        # without a call.
        tools.open(10, answer="42")
        tools.step(10, *(("calculate", {"expression": text}) for text in ("1", "6 * 7", "1 +")),
                   ("calculate", {"term": "1"}))
        self.assertEqual(tools.ask({"close": 10})["reward"], 1.0)
        tools.open(11, answer="42")
        self.assertEqual(tools.ask({"close": 11})["reward"], 0.0)
        tools.open(12)
        self.assertEqual(tools.ask({"close": 12}), {"close": 12})
        self.assertIn("no arithmetic expression", tools.open(13, answer="forty two")["error"])

    def test_long_answers(self):
        program = self.write("long.py", f"""
import sys
sys.path.insert(0, {str(SHARE)!r})
from episodes import serve

class Episode:
    append, done = None, False
    def __init__(self, row, seed):
        self.tools = [{{"name": "say", "description": "x" * row.get("described", 1)}}]
    def call(self, name, arguments):
        return arguments["text"] * arguments["times"]
    def close(self):
        return None

serve(Episode)
""")
        tools = Dialogue(self, sys.executable, program)
        tools.open(1)
        wide = "\U0001f600"  # 4 bytes
        said = contents(tools.step(1, ("say", {"text": "a", "times": 9}),
                                   *2 * [("say", {"text": wide, "times": 150_000})],
                                   ("say", {"text": "\n", "times": 1000})))
        self.assertEqual((said[0], said[3]), ("a" * 9, "\n" * 1000))
        self.assertEqual({*said[1], *said[2]}, {wide})
        size = len((said[1] + said[2]).encode())
        self.assertLess(size, 1 << 20)
        self.assertGreater(size, (1 << 20) - 4000)
        self.assertLess(abs(len(said[1]) - len(said[2])), 2)
        one = contents(tools.step(1, ("say", {"text": wide, "times": 150_000})))
        self.assertEqual(len(one[0]), 150_000, "it fits alone")
        refused = tools.open(2, described=2_000_000)
        self.assertIn("at most 1048576 can be told", refused["error"])

    def test_mcp(self):
        self.need("mcp")
        server = self.write("server.py", MCP_SERVER)
        tools = Dialogue(self, PYTHON, SHARE / "mcp_env.py", PYTHON, server)
        opened = tools.open(1, seed=77)
        names = {tool["function"]["name"]: tool["function"] for tool in opened["tools"]}
        self.assertEqual(set(names), {"add", "seed", "fail"})
        self.assertEqual(names["add"]["description"], "Adds to the counter.")
        self.assertEqual(names["add"]["parameters"]["properties"]["amount"]["type"], "integer")

        # Two episodes, a server each.
        tools.open(2, seed=78)
        answer = tools.step(1, ("add", {"amount": 2}), ("add", {"amount": 3}), ("seed", {}))
        self.assertEqual(contents(answer), ["2", "5", "77"])
        self.assertEqual(contents(tools.step(2, ("add", {"amount": 1}), ("seed", {}))), ["1", "78"])
        answer = tools.step(1, ("fail", {}), ("nope", {}), ("add", {"amount": "x"}),
                            ("add", {"amount": 1}))
        self.assertEqual(answer["failed_calls"], 3, answer)
        self.assertIn("Error executing tool fail", contents(answer)[0])
        self.assertEqual(contents(answer)[3], "6")
        for number in (1, 2):
            self.assertEqual(tools.ask({"close": number}), {"close": number})
        self.assertIn("error", tools.ask({"close": 1}))

    def test_mcp_server_that_is_none(self):
        tools = Dialogue(self, PYTHON, SHARE / "mcp_env.py", "true")
        self.assertIn("the MCP server ended", tools.open(1)["error"])

    def test_openenv(self):
        self.need("openenv", "websockets", "uvicorn", "fastapi")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        script = self.write("server.py", OPENENV_SERVER)
        server = subprocess.Popen([PYTHON, script, str(port)])
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        url = f"http://127.0.0.1:{port}"
        for _ in range(PATIENCE):
            self.assertIsNone(server.poll())
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(1)

        tools = Dialogue(self, PYTHON, SHARE / "openenv_env.py", url)
        opened = tools.open(1, seed=17, reset={"highest": 10})
        self.assertIn("a number below 10", opened["append"])
        function = opened["tools"][0]["function"]
        self.assertEqual(function["name"], "step")
        self.assertEqual(list(function["parameters"]["properties"]), ["number"])
        tools.open(2, seed=3)
        answer = tools.step(1, ("step", {"number": 3}))
        self.assertIn("higher", contents(answer)[0])
        self.assertFalse(answer["done"])
        answer = tools.step(1, ("step", {"numbers": 3}), ("nope", {}), ("step", {"number": 7}))
        self.assertEqual(answer["failed_calls"], 2, answer)
        self.assertIn("found", contents(answer)[2])
        self.assertTrue(answer["done"])
        self.assertEqual(tools.ask({"close": 1}), {"close": 1, "reward": 0.75})
        self.assertTrue(tools.step(2, ("step", {"number": 3}))["done"])
        self.assertEqual(tools.ask({"close": 2}), {"close": 2, "reward": 1.0})


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    ran_all_skipped = result.testsRun > 0 and len(result.skipped) == result.testsRun
    sys.exit(SKIPPED if ran_all_skipped else not result.wasSuccessful())
