"""Functions as rewards: what a program that asks them sees."""
import decimal
import json
import os
import subprocess
import sys
import threading
import unittest

from retort.reward import BadScore, load_function, to_score
from tests.support import PACKAGE_FOLDER, FolderTest, python

MODULE = '''
import os, subprocess, sys
print("the module prints")
sys.stdout.write("without an end")

def score(row):
    print("the function prints")
    subprocess.run(["echo", "a child prints"])
    os.write(1, b"and past Python\\n")
    if row["reference"] is None:
        return None
    return float(row["reference"] in row["completion"])

def changes(row):
    row.clear()
    raise KeyError("gone")

def ends(row):
    sys.exit("enough")

class Judge:
    def score(self, row):
        return len(row["completion"])

judge = Judge()
text = lambda row: "0.5"
nothing_finite = lambda row: float("nan")
number = 7
'''


def request(number, completion, reference="4", question="2 + 2 =", field="b"):
    row = {"id": number, "prompt": question, "question": question, "completion": completion}
    rest = {"reference": reference, "num_tokens": 2, "truncated": False, "fields": {"a": field}}
    return json.dumps({**row, **rest}) + "\n"


class RewardTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("my_rewards.py", MODULE)

    def ask(self, function, *requests):
        return python("-m", "retort.reward", f"my_rewards:{function}", stdin="".join(requests))

    def test_answers_each_request_whatever_is_printed(self):
        asked = [request(17, " 4"), request(18, " 5"), request(19, "", None)]
        result = self.ask("score", *asked)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            [json.loads(line) for line in result.stdout.splitlines()],
            [{"id": 17, "score": 1}, {"id": 18, "score": 0}, {"id": 19, "score": None}],
        )
        for text in ("the module prints", "the function prints", "a child prints", "past Python"):
            self.assertIn(text, result.stderr)

    def test_answers_before_the_next_request(self):
        # What a child reads is not the request that comes next, nor waits for it.
        self.write(
            "my_rewards.py",
            "import subprocess\n"
            "def score(row):\n"
            "    return len(subprocess.check_output('read line; echo $line', shell=True)) - 1\n",
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "retort.reward", "my_rewards:score"], text=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        self.addCleanup(process.stdout.close)
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        for number in (1, 2):
            process.stdin.write(request(number, " 4"))
            process.stdin.flush()
            self.assertEqual(process.stdout.readline(), f'{{"id": {number}, "score": 0.0}}\n')
        process.stdin.close()
        self.assertEqual(process.wait(), 0)
        watchdog.cancel()

    def test_what_it_printed_before_a_crash_is_there(self):
        self.write("my_rewards.py", "import os\ndef score(row):\n  print('last'); os._exit(3)\n")
        result = self.ask("score", request(1, ""))
        self.assertEqual((result.returncode, result.stderr), (3, "last\n"))

    def test_a_method(self):
        result = self.ask("judge.score", request(1, "abc"))
        self.assertEqual(json.loads(result.stdout), {"id": 1, "score": 3})

    def fails(self, function, *parts):
        long = request(5, "y" * 5000, question="x" * 5000)
        result = self.ask(function, request(4, " 4"), long)
        self.assertEqual(result.returncode, 1)
        for part in (f"my_rewards:{function} ", '"question": "2 + 2 ="', *parts):
            self.assertIn(part, result.stderr[-2000:], "what the run keeps of it")

    def test_an_exception_names_function_and_row(self):
        self.fails("changes", "raised KeyError: 'gone'", 'raise KeyError("gone")')
        self.fails("ends", "raised SystemExit: enough")

    def test_what_is_no_score_is_named(self):
        self.fails("text", "returned str: '0.5'", "expected a finite number, or None")
        self.fails("nothing_finite", "returned nan, which is not finite")

    def test_a_row_with_long_texts_leaves_room_for_the_cause(self):
        self.write("my_rewards.py", "def score(row):\n    raise ValueError('z' * 5000)\n")
        result = self.ask("score", request(5, "y" * 5000, question="x" * 5000, field="w" * 5000))
        kept = result.stderr[-2000:]
        self.assertIn("my_rewards:score raised ValueError: zzz", kept)
        self.assertIn('the row: {"prompt": "xxx', kept)

    def test_a_name_that_names_nothing(self):
        for name, says in (
            ("my_rewards", "expected MODULE:FUNCTION"),
            ("my_rewards:", "expected MODULE:FUNCTION"),
            ("elsewhere:score", "cannot import 'elsewhere'"),
            ("my_rewards:missing", "'my_rewards' has no 'missing'"),
            ("my_rewards:number", "is int; expected a function"),
        ):
            result = python("-m", "retort.reward", name)
            self.assertEqual((result.returncode, result.stdout), (2, ""), name)
            self.assertIn(says, result.stderr)


class ToScoreTest(unittest.TestCase):
    def test_numbers(self):
        class Scalar:  # as those of numpy and torch
            def __float__(self):
                return 0.25

        for value, score in ((None, None), (1, 1.0), (True, 1.0), (0.5, 0.5), (Scalar(), 0.25),
                             (decimal.Decimal("0.5"), 0.5)):
            self.assertEqual(to_score(value), score)

    def test_what_is_none(self):
        class Several:
            def __float__(self):
                raise TypeError("only length-1 arrays can be converted")

        for value in ("1", [1], {}, float("inf"), float("nan"), Several(), 10**400, 1j):
            with self.assertRaises(BadScore, msg=repr(value)):
                to_score(value)

    def test_load_function(self):
        self.assertIs(load_function("json:dumps"), json.dumps)
