"""player.py PART [FILE]: an environment that does what its part says, well-behaved or not."""
import json
import os
import pathlib
import signal
import sys
import time

PART = sys.argv[1]


def say(answer):
    print(json.dumps(answer), flush=True)


def honest(request):
    """The answer of a program that has nothing to hide: tools say what they were given."""
    if "open" in request:
        number, row = request["open"], request["row"]
        tool = {"type": "function", "function": {"name": "echo", "parameters": {}}}
        text = f"{row.get('text', '')} {request['seed']}"
        return {"open": number, "tools": [tool], "messages": [{"role": "user", "content": text}]}
    if "step" in request:
        messages = [
            {"role": "tool", "name": call["name"], "content": json.dumps(call["arguments"])}
            for call in request["calls"]
        ]
        messages = messages or [{"role": "user", "content": request["text"]}]
        return {"step": request["step"], "messages": messages, "done": request["turn"] == 3}
    number = request["close"]
    return {"close": number, "reward": number / 8, "metrics": {"solved": 1}}


def first_time():
    """Whether this is the first process that plays the part."""
    mark = pathlib.Path(sys.argv[2])
    if mark.exists():
        return False
    mark.touch()
    return True


def half_line():
    sys.stdout.write('{"step": 1, "mess')
    sys.stdout.flush()


def ends():
    print("Traceback: no such module", file=sys.stderr, flush=True)
    os._exit(3)


def ends_by_half_line():
    half_line()
    ends()


def hangs_in_half_line():
    half_line()
    time.sleep(3600)


def closes(descriptor):
    os.close(descriptor)
    time.sleep(3600)


# What a part does when it is asked for its first step.
STEPS = {
    "silent": lambda: time.sleep(3600),
    "babbling": lambda: print("Loading model ...", flush=True),
    "list": lambda: say([1, 2]),
    "no_verb": lambda: say({"id": 1}),
    "two_verbs": lambda: say({"open": 1, "step": 1}),
    "text_id": lambda: say({"step": "1"}),
    "unknown_id": lambda: say({"step": 99, "messages": [], "done": True}),
    "zero_id": lambda: say({"close": 0}),
    "wrong_verb": lambda: say({"open": 1}),
    "nan": lambda: print('{"step": 1, "messages": [], "done": NaN}', flush=True),
    "deep": lambda: print('{"step": 1, "messages": ' + "[" * 5000, flush=True),
    "long_line": lambda: print("x" * (2 << 20), flush=True),
    "half_line": ends_by_half_line,
    "hangs_in_half_line": hangs_in_half_line,
    "exits": ends,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "closes_stdin": lambda: closes(0),
    "closes_stdout": lambda: closes(1),
    "floods": lambda: [print("y" * 1000, flush=True) for _ in iter(int, 1)],
}


def play():
    requests = (json.loads(line) for line in sys.stdin)
    hello = next(requests)
    assert hello == {"retort_environment": 1, "episodes": hello["episodes"]}, hello
    if PART == "silent_hello":
        time.sleep(3600)
    if PART == "version":
        return say({"retort_environment": 2})
    if PART == "no_hello":
        return print("Welcome!", flush=True)
    if PART == "exits_at_once":
        os._exit(4)
    say({"retort_environment": 1, "user_turns": PART == "talks"})
    scripts, waiting, asked_again = {}, [], False
    for request in requests:
        if PART == "floods_stderr":
            print("z" * 200_000 + "\n" + "z" * 5_000_000, file=sys.stderr, flush=True)
        if PART == "slow":
            time.sleep(0.02)
        if PART == "reversed":
            # Four at a time.
            waiting.append(request)
            if len(waiting) == 4:
                for one in reversed(waiting):
                    say(honest(one))
                waiting = []
            continue
        if PART == "scripted":
            # The rows say what is said; {"pause": S} waits before it.
            number = next(request[verb] for verb in ("open", "step", "close") if verb in request)
            if "open" in request:
                scripts[number] = list(request["row"]["says"])
            for text in scripts[number].pop(0):
                if isinstance(text, float):
                    time.sleep(text)
                else:
                    print(text.replace("N", str(number)), flush=True)
            continue
        if "step" in request and PART in STEPS and (len(sys.argv) < 3 or first_time()):
            STEPS[PART]()
            continue
        say(honest(request))
        if PART == "answers_closed" and "close" in request:
            say({"step": request["close"], "messages": [], "done": True})
        if PART == "answers_twice" and "open" in request and not asked_again:
            asked_again = True
            say({"open": request["open"]})


play()
