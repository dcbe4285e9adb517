"""TRL's environments and tools over the protocol, against what TRL's own code made of them."""
import json
import os
import queue
import subprocess
import sys
import threading
import unittest

import retort_env
from tests import env_cases
from tests.support import PACKAGE_FOLDER, FolderTest

GOLDEN = json.loads((PACKAGE_FOLDER / "tests/goldens/retort_env.json").read_text())
PROGRAM = str(PACKAGE_FOLDER / "retort_env.py")
PATIENCE = 120  # seconds
HELLO = {"retort_environment": 1, "episodes": 8}

OTHERS = '''
import os, subprocess, sys, threading, time

print("the module prints")
gate = threading.Event()

class Slow:
    def __init__(self):
        self.thread = threading.get_ident()
    def reset(self, **row):
        assert threading.get_ident() == self.thread, "another thread"
        self.row = row
    def wait(self) -> str:
        """Until another episode opens the gate."""
        assert threading.get_ident() == self.thread, "another thread"
        return str(gate.wait(60))
    def open_gate(self) -> str:
        """Opens it."""
        gate.set()
        os.write(1, b"past Python\\n")
        subprocess.run(["echo", "a child prints"])
        return input() if self.row.get("reads") else "open"
    def big(self, size: int) -> str:
        """A long text.

        Args:
            size: How long.
        """
        return "x" * size
    def picture(self) -> list:
        """No JSON."""
        return [{"type": "image", "image": object()}]
    def ends(self) -> str:
        """Ends the program, under TRL."""
        sys.exit("enough")
    def get_reward(self):
        return self.row.get("reward")

class Bad:
    def reset(self, what):
        if what == "raise":
            raise ValueError("no such task")
        return what

class NoReset:
    pass

class Needs(NoReset):
    def __init__(self, size):
        pass

class Undocumented:
    def reset(self): pass
    def tool(self, x: int): pass

def seeded(x: int) -> int:
    """A tool.

    Args:
        x: The x.
    """
    return x

class Seeded:
    def reset(self, seed, **row):
        return f"seed {seed}"
'''

# What raises, by the line of its own file that calls what does.
RAISING = '''from deep import deeper

class Raising:
    def __init__(self):
        deeper("init")
    def reset(self, **row):
        deeper("reset")
    def get_reward(self):
        return deeper("reward")
'''
CALLS = {"init": 5, "reset": 7, "reward": 9}
DEEP = '''
def deeper(stage):
    with open("stage") as file:
        if file.read() == stage:
            return {}["goal"]
'''

FAILING = '''

def fail(word: str) -> str:
    """Fails.

    Args:
        word: The word.
    """
    return {}["" + word]
'''


class Dialogue:
    """A program that runs, and what it says, line by line."""

    def __init__(self, test, *arguments):
        environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": os.pathsep.join([str(PACKAGE_FOLDER), os.getcwd()])}
        self._errors = open("stderr", "w+b")
        self._program = subprocess.Popen(
            [sys.executable, "-S", PROGRAM, *arguments], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        test.addCleanup(self.end)

    def _read(self):
        for line in self._program.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def send(self, *requests):
        for request in requests:
            self._program.stdin.write(json.dumps(request).encode() + b"\n")
        self._program.stdin.flush()

    def next(self):
        return self._lines.get(timeout=PATIENCE)

    def ask(self, request):
        self.send(request)
        return self.next()

    def errors(self):
        self._errors.seek(0)
        return self._errors.read().decode()

    def end(self):
        """The exit code, and what it wrote to stderr."""
        if self._program.stdin.closed:
            return None
        self._program.stdin.close()
        code = self._program.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._program.stdout.close()
        errors = self.errors()
        self._errors.close()
        return code, errors


def opening(number, seed=1, **row):
    return {"open": number, "row": row, "seed": seed}


def turn(number, *calls):
    listed = [{"id": f"c{i}", **call} for i, call in enumerate(calls)]
    return {"step": number, "turn": 1, "text": "", "calls": listed}


class SchemaTest(unittest.TestCase):
    def test_own_schemas_are_those_of_transformers(self):
        for function, golden in zip(env_cases.DESCRIBED, GOLDEN["schemas"], strict=True):
            with self.subTest(function.__name__):
                schema = retort_env.own_schema(function)
                # The order counts too: templates write it.
                self.assertEqual(json.dumps(schema), json.dumps(golden))

    def test_transformers_is_asked_where_it_is(self):
        try:
            from transformers.utils import get_json_schema
        except ImportError:
            self.skipTest("transformers is not installed")
        for function in env_cases.DESCRIBED:
            with self.subTest(function.__name__):
                text = json.dumps(get_json_schema(function))
                self.assertEqual(json.dumps(retort_env.own_schema(function)), text)
                self.assertEqual(json.dumps(retort_env.schema_of(function)), text)

    def test_what_transformers_refuses_is_refused(self):
        self.assertEqual(len(GOLDEN["refused"]), len(env_cases.REFUSED))
        for function in env_cases.REFUSED:
            with self.subTest(function.__name__):
                with self.assertRaises(retort_env.Refused) as raised:
                    retort_env.own_schema(function)
                self.assertGreater(len(str(raised.exception)), 10)


class TrlTest(FolderTest):
    """Episodes with a class are what TRL's trainer makes of them."""

    def check(self, name):
        program = Dialogue(self, f"tests.env_cases:{name}", "--tools", "tests.env_cases:upper")
        self.assertEqual(program.ask(HELLO), {"retort_environment": 1, "user_turns": False})
        for number, (row, turns) in enumerate(env_cases.DIALOGUES, 1):
            with self.subTest(number):
                golden = GOLDEN[name][number - 1]
                prompt = [{"role": "user", "content": "Go."}]
                opened = program.ask(opening(number, prompt=prompt, **row))
                self.assertEqual(json.dumps(opened["tools"]), json.dumps(GOLDEN["tools"]))
                self.assertEqual(opened.get("append", ""), golden["said"])
                answers = [program.ask(turn(number, *calls)) for calls in turns]
                messages = [message for answer in answers for message in answer["messages"]]
                self.assertEqual(messages, golden["messages"])
                failed = sum(answer["failed_calls"] for answer in answers)
                self.assertEqual(failed, golden["failures"])
                self.assertEqual(sum(map(len, turns)), golden["calls"])
                closed = program.ask({"close": number})
                self.assertEqual(closed.pop("reward", None), golden["reward"])
                self.assertEqual(closed, {"close": number})
        code, errors = program.end()
        self.assertEqual(code, 0, errors)
        self.assertIn("add() prints", errors)

    def test_environment(self):
        self.check("Counter")

    def test_async_reward(self):
        self.check("Judged")


class ServingTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("others.py", OTHERS)

    def start(self, *arguments):
        program = Dialogue(self, *arguments)
        self.assertEqual(program.ask(HELLO), {"retort_environment": 1, "user_turns": False})
        return program

    def test_a_slow_tool_holds_up_nobody(self):
        program = self.start("others:Slow")
        for number in (1, 2):
            self.assertEqual(program.ask(opening(number))["open"], number)
        # The first waits for the second.
        program.send(turn(1, env_cases.call("wait")), turn(2, env_cases.call("open_gate")))
        answers = sorted((program.next() for _ in range(2)), key=lambda answer: answer["step"])
        for number, name, content in ((1, "wait", "True"), (2, "open_gate", "open")):
            self.assertEqual(answers[number - 1], {
                "step": number, "failed_calls": 0, "done": False,
                "messages": [{"role": "tool", "name": name, "content": content}]})
        for number in (1, 2):
            self.assertEqual(program.ask({"close": number}), {"close": number})
        code, errors = program.end()
        self.assertEqual(code, 0)
        for text in ("the module prints", "past Python", "a child prints"):
            self.assertIn(text, errors)

    def test_each_episode_has_an_instance(self):
        program = self.start("others:Slow")
        program.send(*(opening(number, reward=number / 4) for number in range(1, 101)))
        opened = {program.next()["open"] for _ in range(100)}
        self.assertEqual(opened, set(range(1, 101)))
        program.send(*({"close": number} for number in range(1, 101)))
        closed = [program.next() for _ in range(100)]
        self.assertEqual({c["close"]: c["reward"] for c in closed},
                         {number: number / 4 for number in range(1, 101)})

    def test_tools_read_nothing_of_the_protocol(self):
        program = self.start("others:Slow")
        program.ask(opening(1, reads=True))
        answer = program.ask(turn(1, env_cases.call("open_gate")))
        self.assertEqual(answer["messages"][0]["content"], "{'error': 'EOF when reading a line'}")
        self.assertEqual(answer["failed_calls"], 1)

    def test_errors_end_an_episode(self):
        program = self.start("others:Slow")
        for number, name, part in ((1, "picture", "no JSON"), (2, "ends", "SystemExit: enough")):
            program.ask(opening(number))
            answer = program.ask(turn(number, env_cases.call(name)))
            self.assertEqual(set(answer), {"step", "error"})
            self.assertIn(part, answer["error"])
            closed = program.ask({"close": number})
            self.assertEqual(closed, {"close": number, "error": f"episode {number} is not open"})
        program.ask(opening(3, reward=float("inf")))
        self.assertIn("returned inf, a float; expected", program.ask({"close": 3})["error"])
        self.assertEqual(program.ask(turn(9)), {"step": 9, "error": "episode 9 is not open"})

    def test_a_reward_is_a_number(self):
        program = self.start("others:Slow")
        for number, (value, kind) in enumerate([("1.0", "str"), ("much", "str"), ([1], "list")]):
            program.ask(opening(number, reward=value))
            self.assertIn(
                f"Slow.get_reward() returned {value!r}, a {kind}; expected a number or None",
                program.ask({"close": number})["error"])
        program.ask(opening(9, reward=True))
        self.assertEqual(program.ask({"close": 9}), {"close": 9, "reward": 1.0})

    def test_reset_may_refuse(self):
        program = self.start("others:Bad")
        for row, part in (
            ({"what": "raise"}, "Bad.reset() raised ValueError: no such task (others.py:"),
            ({}, "Bad.reset() missing 1 required positional argument: 'what'; it gets the row's "),
            ({"what": "a", "goal": 1}, "argument 'goal'; it gets the row's columns by name (what, "
                                       "goal): name them, or take **row"),
            ({"what": [1]}, "Bad.reset() returned [1], a list; expected None or a text"),
        ):
            answer = program.ask(opening(1, **row))
            self.assertIn(part, answer["error"])
        self.assertEqual(program.ask(opening(2, what="hi")),
                         {"open": 2, "tools": [], "append": "hi"})

    def test_what_raises_is_named_with_its_line(self):
        self.write("deep.py", DEEP)
        self.write("raising.py", RAISING)
        for stage, name in (("init", "Raising"), ("reset", "Raising.reset"),
                            ("reward", "Raising.get_reward")):
            self.write("stage", "")
            program = self.start("raising:Raising")
            program.ask(opening(1))  # which takes the instance that was made first
            self.write("stage", stage)
            answer = program.ask(opening(2))
            if stage == "reward":
                answer = program.ask({"close": 2})
            self.assertEqual(
                answer["error"], f"{name}() raised KeyError: 'goal' (raising.py:{CALLS[stage]})")
            # Where exactly is in the log.
            self.assertIn("in deeper\n", program.end()[1])

        self.write("stage", "init")
        program = Dialogue(self, "raising:Raising")
        self.assertIsNone(program.next())
        code, errors = program.end()
        self.assertEqual(code, 2)
        self.assertIn("in deeper\n", errors)
        self.assertEqual(errors.splitlines()[-1], "retort_env: Raising() raised KeyError: 'goal' "
                         f"(raising.py:{CALLS['init']})")

    def test_failures_of_tools_are_logged(self):
        self.write("failing.py", FAILING)
        program = self.start("--tools", "failing.py")
        program.ask(opening(1))
        calls = [env_cases.call("fail", word="a")] * 11 + [env_cases.call("fail", word=1)]
        calls += [env_cases.call(f"nope{i}\n") for i in range(9)] + [env_cases.call("fail", x=1)]
        self.assertEqual(program.ask(turn(1, *calls))["failed_calls"], len(calls))
        _, errors = program.end()
        self.assertEqual(errors.count("Traceback"), 2, errors)
        for text in ("tool 'fail' raised KeyError: 'a' (failing.py:9), which the model is told (1 ",
                     "tool 'fail' raised KeyError: 'a' (failing.py:9), which the model is told (10",
                     "tool 'fail' raised TypeError: ", 'return {}["" + word]',
                     "the model's mistake: Tool nope0 not found. (1 so far)",
                     "the model's mistake: fail() got an unexpected keyword argument 'x' (1 "):
            self.assertIn(text, errors)
        self.assertEqual(errors.count("the model's mistake"), 2)

    def test_long_texts_are_cut(self):
        program = self.start("others:Slow")
        program.ask(opening(1))
        answer = program.ask(turn(1, env_cases.call("big", size=3_000_000)))
        self.assertEqual(answer["messages"][0]["content"], "x" * 750_000)
        self.assertIn("'big' returned is cut at 750000 characters", program.end()[1])

    def test_rows_choose_an_environment(self):
        program = self.start("tests.env_cases:ENVIRONMENTS")
        opened = program.ask(opening(1, environment="bare", b=1, a=2))
        self.assertEqual(opened, {"open": 1, "tools": [], "append": "['a', 'b']"})
        opened = program.ask(opening(2, environment="counter"))
        self.assertEqual(opened["tools"][0]["function"]["name"], "add")
        self.assertIn("expected one of ['counter', 'bare']", program.ask(opening(3))["error"])

    def test_functions_alone(self):
        self.write("folder/my_tools.py", "from others import seeded\n" + '''
def twice(x: int) -> int:
    """Doubles.

    Args:
        x: The x.
    """
    return 2 * x

def _hidden(): pass
''')
        program = self.start("--tools", "folder/my_tools.py", "--tools", "others:seeded")
        opened = program.ask(opening(1))
        names = [tool["function"]["name"] for tool in opened["tools"]]
        self.assertEqual(names, ["twice", "seeded"])
        answer = program.ask(turn(1, env_cases.call("twice", x=4)))
        self.assertEqual(answer["messages"][0]["content"], "8")
        self.assertEqual(program.ask({"close": 1}), {"close": 1})

    def test_the_seed_is_given_by_name(self):
        program = self.start("others:Seeded", "--seed-as", "seed")
        self.assertEqual(program.ask(opening(1, seed=2**63))["append"], f"seed {2**63}")

    def test_what_cannot_be_served_is_refused(self):
        self.write("other/json.py", "class Env: pass\n")
        for arguments, part in (
            (["others"], "names no environment; expected MODULE:CLASS"),
            (["nowhere:Env"], "cannot import 'nowhere'"),
            (["others:Env"], "'others' has no 'Env'"),
            (["others:gate"], "Event; expected a class"),
            (["others:NoReset"], "NoReset has no method reset()"),
            (["others:Undocumented"], "Undocumented.tool: "),
            (["--tools", "others:gate"], "expected functions, found <threading.Event"),
            (["--tools", "nothing.py"], f"there is no file 'nothing.py' in {self.folder}; exp"),
            (["nowhere/others.py:Slow"], f"there is no file 'others.py' in {self.folder}/nowhere"),
            (["./others:Slow"], f"no file 'others' in {self.folder}; expected FILE.py, or the n"),
            (["other/json.py:Env"], "'json' is another module too ("),
            (["others:Needs"], "Needs.__init__() missing 1 required positional argument: 'size'; "
                               "expected a class, or a function, that is called without"),
        ):
            with self.subTest(arguments):
                program = Dialogue(self, *arguments)
                self.assertIsNone(program.next())
                code, errors = program.end()
                self.assertEqual(code, 2, errors)
                self.assertIn(part, errors)
                self.assertNotIn("Traceback", errors)

    def test_another_version_is_refused(self):
        program = Dialogue(self, "others:Slow")
        self.assertIsNone(program.ask({"retort_environment": 2}))
        code, errors = program.end()
        self.assertEqual(code, 2)
        self.assertIn("expected version 1 of the protocol", errors)


if __name__ == "__main__":
    unittest.main()
