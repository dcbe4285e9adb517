"""What the programs of this folder share: the protocol of docs/environments.md, for an environment
whose episodes are objects.

    class Episode:
        def __init__(self, row, seed): ...       # what it raises ends the episode with its words
        tools = [...]                            # schemas, as chat templates take them
        append = "..."                           # said behind the prompt, or None
        done = False                             # the model says nothing more
        def call(self, name, arguments): ...     # a text; what it raises is told to the model
        def close(self): ...                     # the reward, or None

    serve(Episode)

Each episode has a thread, in which all of it is done, in order.
"""
import concurrent.futures
import json
import os
import sys
import threading
import traceback

_MAX_TEXT = 200_000  # characters of an answer of a tool: no model reads more
_MAX_LINE = 1 << 20  # bytes that the protocol has for a line


def take_streams():
    """The protocol's own streams; whatever else prints, prints to stderr."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, answers


def _encoded(value):
    # As UTF-8, in which a character has up to 4 bytes; escaped it has up to 12. Half of a surrogate
    # pair, which UTF-8 has not, becomes "?".
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _cut(text, most):
    """The longest beginning of the text that takes so many bytes of a line."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(_encoded(text[:middle])) - len('""') <= most:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def to_line(answer):
    """The line of an answer; the texts of its messages are cut where it would be too long, the
    longest ones first."""
    line = _encoded(answer)
    messages = answer.get("messages", [])
    if len(line) > _MAX_LINE and messages:
        sizes = [len(_encoded(message["content"])) - len('""') for message in messages]
        left = _MAX_LINE - (len(line) - sum(sizes))
        for place, i in enumerate(sorted(range(len(messages)), key=sizes.__getitem__)):
            share = max(left, 0) // (len(messages) - place)
            messages[i]["content"] = _cut(messages[i]["content"], share)
            left -= min(sizes[i], share)
        line = _encoded(answer)
    if len(line) > _MAX_LINE:
        raise ValueError(f"the answer has {len(line)} bytes as a line; at most {_MAX_LINE} can be "
                         "told")
    return line + b"\n"


class _Server:
    def __init__(self, make, answers):
        self._make = make
        self._answers = answers
        self._lock = threading.Lock()
        self._episodes = {}  # number -> its thread, and what it is once it has begun

    def write(self, answer):
        line = to_line(answer)
        with self._lock:
            self._answers.write(line)
            self._answers.flush()

    def take(self, request):
        verb = next(verb for verb in ("open", "step", "close") if verb in request)
        number = request[verb]
        if verb == "open":
            thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
            self._episodes[number] = (thread, [])
        elif number not in self._episodes:
            return self.write({verb: number, "error": f"episode {number} is not open"})
        thread, place = self._episodes[number]
        return thread.submit(self._answer, verb, number, place, request)

    def _answer(self, verb, number, place, request):
        try:
            if verb == "open":
                place.append(self._make(request["row"], request["seed"]))
                said = place[0].append
                answer = {"tools": place[0].tools, **({"append": said} if said else {})}
            elif verb == "step":
                answer = self._step(place[0], request["calls"])
            else:
                self._episodes.pop(number, None)
                reward = place[0].close()
                answer = {} if reward is None else {"reward": reward}
            self.write({verb: number, **answer})
        except BaseException as error:
            traceback.print_exc()
            self._episodes.pop(number, None)
            self.write({verb: number, "error": f"{type(error).__name__}: {error}"[:800]})

    @staticmethod
    def _step(episode, calls):
        messages, failed = [], 0
        for call in calls:
            try:
                if episode.done:
                    raise ValueError("the episode is over")
                text = str(episode.call(call["name"], call["arguments"]))
            except Exception as error:
                failed += 1
                text = str({"error": str(error)})  # as TRL tells it
            messages.append({"role": "tool", "name": call["name"], "content": text[:_MAX_TEXT]})
        return {"messages": messages, "failed_calls": failed, "done": episode.done}


def serve(make, user_turns=False):
    """Answers the lines of stdin until there are no more."""
    requests, answers = take_streams()
    server = _Server(make, answers)
    hello = json.loads(requests.readline() or b"{}")
    if hello.get("retort_environment") != 1:
        sys.exit(f"the first line is {hello}; expected version 1 of the protocol")
    server.write({"retort_environment": 1, "user_turns": user_turns})
    code = 1
    try:
        for line in requests:
            server.take(json.loads(line))
        code = 0
    except Exception:
        traceback.print_exc()
    os._exit(code)  # what never ends is left as it is
