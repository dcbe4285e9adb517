"""python3 mcp_env.py COMMAND [ARGUMENT ...]: the tools of an MCP server that speaks over stdio.

    roles:
      tools: {environment: {command: [python3, mcp_env.py, my-mcp-server, --option]}}

Each episode has a server of its own, started by this command and ended with it. Results are told to
the model as their texts; there is no reward. Needs nothing but Python.
"""
import json
import os
import subprocess
import sys

from episodes import serve

PROTOCOL = "2025-06-18"  # of the Model Context Protocol
GRACE = 2  # seconds, for a server to end once its stdin is closed


class Episode:
    append = None
    done = False

    def __init__(self, row, seed):
        environment = {**os.environ, "RETORT_SEED": str(seed)}
        self._server = subprocess.Popen(
            sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._last = 0
        try:
            about = {"name": "retort", "version": "1"}
            self._ask("initialize", protocolVersion=PROTOCOL, capabilities={}, clientInfo=about)
            self._say({"method": "notifications/initialized"})
            self.tools = list(self._list_tools())
        except BaseException:
            self._end()
            raise

    def _say(self, message):
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        self._server.stdin.write(line)
        self._server.stdin.flush()

    def _ask(self, method, **parameters):
        self._last += 1
        self._say({"id": self._last, "method": method, "params": parameters})
        for line in self._server.stdout:
            message = json.loads(line)
            # Between there may be notifications, and questions, of which this client answers none.
            if "method" in message and "id" in message:
                error = {"code": -32601, "message": "not supported"}
                answer = {} if message["method"] == "ping" else None
                self._say({"id": message["id"],
                           **({"error": error} if answer is None else {"result": answer})})
            elif message.get("id") == self._last and "method" not in message:
                if "error" in message:
                    raise ValueError(message["error"].get("message", message["error"]))
                return message["result"]
        raise BrokenPipeError(f"the MCP server ended, code {self._server.wait()}")

    def _list_tools(self):
        cursor = {}
        while True:
            page = self._ask("tools/list", **cursor)
            for tool in page["tools"]:
                function = {"name": tool["name"], "description": tool.get("description", ""),
                            "parameters": tool["inputSchema"]}
                yield {"type": "function", "function": function}
            if not page.get("nextCursor"):
                return
            cursor = {"cursor": page["nextCursor"]}

    def call(self, name, arguments):
        result = self._ask("tools/call", name=name, arguments=arguments)
        parts = [part.get("text", f"[{part['type']}]") for part in result.get("content", [])]
        text = "\n".join(parts)
        if result.get("isError"):
            raise ValueError(text)
        return text

    def close(self):
        self._end()

    def _end(self):
        try:
            self._server.stdin.close()
            self._server.wait(GRACE)
        except (OSError, subprocess.TimeoutExpired):
            self._server.kill()
            self._server.wait()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    serve(Episode)
