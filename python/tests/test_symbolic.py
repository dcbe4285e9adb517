"""Formulas that are compared for `type: numeric`."""
import importlib.util
import io
import json
import os
import subprocess
import sys
import unittest

from retort import symbolic
from tests.support import PACKAGE_FOLDER, FolderTest, python

HAS_SYMPY = importlib.util.find_spec("sympy") is not None
NEEDS_SYMPY = "sympy is not installed for this Python"

EQUAL = (
    ("x+3", "3+x"), ("2x", "x*2"), ("(x+1)^2", "x^2+2x+1"), (r"\frac{x}{2}", "x/2"),
    (r"\dfrac12 x", "0.5x"), (r"\sin^2 x+\cos^2 x", "1"), ("y=2x+1", "1+2x"),
    ("x^2+y^2=4", "4=y^2+x^2"), ("2x^2+2y^2=8", "x^2+y^2=4"), (r"\{x,1\}", r"\{1,x\}"),
    ("(x, 2y)", "(x,y+y)"), ("x,y", "(x,y)"), (r"\sqrt{8}x", r"2\sqrt 2 x"),
    ("|x|", r"\sqrt{x^2}"), ("e^{x+y}", "e^x e^y"), (r"\log_2 8", "3"), ("5!", "120"),
    ("The answer is x+3.", "x+3"), ("So it is $x+3$", "x+3"), ("1,234x", "1234x"),
    ("xy^2", "x y^2"), (r"\sqrt[3]{-8}", "-2"), (r"\frac{\pi}{2}r", r"\pi r/2"),
    (r"\left[1,\infty\right)", r"[1,\infty)"), ("x_1+x_{2}", "x_2+x_1"), ("2\u00b7x\u00b2", "2x^2"),
)
UNEQUAL = (
    ("x+3", "x-3"), ("(x,1)", "(1,x)"), ("[1,x)", "(1,x)"), ("x+y=4", "x+y=5"), ("e", "2.718"),
    (r"\sqrt{x^2}", "x"), ("1,2", "x"), ("x", "y"),
    # not read
    ("5 or 7", "7"), ("", "x"), ("1/0", "x"), ("a=b=c", "a"), ("9^9^9^9", "x"),
    ("(2^1000)^1000", "x"), ("(" * 100 + "x" + ")" * 100, "x"), ("x" * 500, "x"),
    ("__import__('os').system('touch run')", "x"), ("open('run','w')", "x"),
)


class SymbolicTest(FolderTest):
    @unittest.skipUnless(HAS_SYMPY, NEEDS_SYMPY)
    def test_formulas(self):
        check = symbolic.choose("sympy")
        for cases, score in ((EQUAL, 1), (UNEQUAL, 0)):
            for answer, label in cases:
                with self.subTest(answer=answer, label=label):
                    self.assertEqual(check(answer, label), score)
        for label in ("no formula at all", "x > 5", ""):
            self.assertIsNone(check("x", label), label)
        self.assertFalse((self.folder / "run").exists(), "what was read was run")

    @unittest.skipUnless(HAS_SYMPY, NEEDS_SYMPY)
    def test_serves(self):
        asked = [{"id": 7, "answer": "x+1", "label": "1+x"}, {"id": 8, "answer": "", "label": "y"},
                 {"id": 9, "answer": "y", "label": "one or two"}]
        result = subprocess.run(
            [sys.executable, "-m", "retort.symbolic", "--with", "sympy"],
            env={**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER)}, text=True, timeout=60,
            input="".join(json.dumps(row) + "\n" for row in asked), capture_output=True,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            [json.loads(line) for line in result.stdout.splitlines()],
            [{"id": 7, "score": 1}, {"id": 8, "score": 0}, {"id": 9, "score": None}],
        )

    def test_math_verify_is_asked_as_trl_asks_it(self):
        self.write(
            "math_verify.py",
            "def parse(text, parsing_timeout):\n"
            "    print('a library prints')\n"
            "    return [text] if 'none' not in text else []\n"
            "def verify(gold, found, timeout_seconds):\n"
            "    return gold == found\n",
        )
        rows = [("x", "x", 1), ("x", "y", 0), ("none", "x", 0), ("x", "none", None)]
        asked = "".join(
            json.dumps({"id": i, "answer": answer, "label": label}) + "\n"
            for i, (answer, label, _) in enumerate(rows)
        )
        result = python("-m", "retort.symbolic", stdin=asked)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            [json.loads(line)["score"] for line in result.stdout.splitlines()],
            [score for _, _, score in rows],
        )
        self.assertIn("a library prints", result.stderr)

    def test_without_a_library_it_says_what_to_install(self):
        result = python("-m", "retort.symbolic")  # -S: nothing is installed
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("retort.symbolic: cannot import math_verify", result.stderr)
        self.assertIn("-m pip install sympy", result.stderr)

    def test_the_time_of_a_pair_is_limited(self):
        def busy(answer, label):
            while True:
                try:
                    sum(range(1000))
                except Exception:
                    pass

        with self.assertRaises(symbolic.TooLong):
            with symbolic.Limit(0.05):
                busy("", "")

        # The reward gives each pair its part of the batch's time.
        asked = [{"id": 0, "answer": "x", "label": "y", "seconds": 0.05}]
        answers = io.BytesIO()
        symbolic.serve(busy, 3600, [json.dumps(row) for row in asked], answers)
        self.assertEqual(answers.getvalue(), b'{"id": 0, "score": null}\n')
