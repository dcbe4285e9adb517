"""python3 openenv_env.py URL: an environment that an OpenEnv server serves (its WebSocket, /ws).

    roles:
      tools: {environment: {command: [python3, openenv_env.py, "http://localhost:8000"]}}

Each episode is a session. The model has one tool, `step`, whose arguments are those of the server's
action; what it is told is the observation as JSON, and the episode ends when that says `done`. The
reward is the sum of those of the steps. What a row has under "reset" goes to the server's reset(),
with the seed of the group. Needs the package websockets, which openenv-core has.
"""
import contextlib
import json
import sys
import urllib.request

from episodes import serve
from websockets.sync.client import connect

URL = sys.argv[1].rstrip("/") if len(sys.argv) == 2 else sys.exit(__doc__)
PATIENCE = 600  # seconds, for one answer
MAX_BYTES = 100 << 20


def read_tool():
    """The schema of an action as that of a tool."""
    try:
        with urllib.request.urlopen(f"{URL}/schema", timeout=PATIENCE) as answer:
            action = json.load(answer)["action"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"openenv_env: {URL}/schema: {type(error).__name__}: {error}; expected the "
                 "address of an OpenEnv server, http://HOST:PORT")
    properties = {k: v for k, v in action.get("properties", {}).items() if k != "metadata"}
    parameters = {**action, "type": "object", "properties": properties}
    description = action.get("description") or "Acts in the environment."
    return {"type": "function", "function": {
        "name": "step", "description": description, "parameters": parameters}}


class Episode:
    done = False

    def __init__(self, row, seed):
        self.tools = [TOOL]
        self._reward = 0.0
        # Entered instead of called alone, which websockets 17 warns of and later ones refuse.
        self._connection = contextlib.ExitStack()
        address = f"ws{URL.removeprefix('http')}/ws"
        try:
            connection = connect(address, max_size=MAX_BYTES)
            self._socket = self._connection.enter_context(connection)
        except Exception as error:  # websockets has types of its own
            raise ConnectionError(f"{address}: {error}") from error
        # Seeds there are those of numpy.
        self.append = "\n" + self._ask("reset", {"seed": seed % 2**32, **row.get("reset", {})})

    def _ask(self, kind, data):
        self._socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(self._socket.recv(timeout=PATIENCE))
        if answer["type"] == "error":
            raise ValueError(answer["data"].get("message", answer["data"]))
        data = answer["data"]
        self.done = bool(data.get("done"))
        self._reward += data.get("reward") or 0.0
        return json.dumps(data["observation"], ensure_ascii=False)

    def call(self, name, arguments):
        if name != "step":
            raise ValueError(f"Tool {name} not found.")
        return self._ask("step", arguments)

    def close(self):
        self._socket.send(json.dumps({"type": "close"}))
        self._connection.close()
        return self._reward


if __name__ == "__main__":
    TOOL = read_tool()
    serve(Episode)
