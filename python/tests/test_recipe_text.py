"""recipe.resolved.yaml; tests/package/wheel_test reads those of whole runs."""
import unittest

from retort.recipe_text import parse_recipe

TEXT = """\
recipe: grpo
output_dir: "runs/a: b"
deterministic: false
roles:
  student:
    model: models/small
    world:
      dp: 2
      device: cpu
    env: {}
    load: null
  "2nd":
    timeout: 120s
data:
  train:
    - {path: a.jsonl, columns: {prompt: question, "a b": c}, weight: 1.0}
    - {path: "$${HOME}/b, c}.jsonl", columns: {}, weight: 5.0e-1}
  eval: []
  when: {"role":"math","keys":["a","b"],"least":-1.5e-05}
train:
  learning_rate: 1.0e-05
  lora: null
  blocks: [[1, 2], [], ["x\\n\\u0001y"]]
rewards:
  - {type: command, argv: [python, "-m", "retort.reward", "mine:score"], timeout: 30s}
launch:
  metrics_port: null
"""


class ParseRecipeTest(unittest.TestCase):
    def test_reads_every_form(self):
        expected = {
            "recipe": "grpo",
            "output_dir": "runs/a: b",
            "deterministic": False,
            "roles": {
                "student": {
                    "model": "models/small",
                    "world": {"dp": 2, "device": "cpu"},
                    "env": {},
                    "load": None,
                },
                "2nd": {"timeout": "120s"},
            },
            "data": {
                "train": [
                    {
                        "path": "a.jsonl",
                        "columns": {"prompt": "question", "a b": "c"},
                        "weight": 1.0,
                    },
                    {"path": "${HOME}/b, c}.jsonl", "columns": {}, "weight": 0.5},
                ],
                "eval": [],
                "when": {"role": "math", "keys": ["a", "b"], "least": -1.5e-05},
            },
            "train": {
                "learning_rate": 1e-05,
                "lora": None,
                "blocks": [[1, 2], [], ["x\n\x01y"]],
            },
            "rewards": [
                {
                    "type": "command",
                    "argv": ["python", "-m", "retort.reward", "mine:score"],
                    "timeout": "30s",
                }
            ],
            "launch": {"metrics_port": None},
        }
        found = parse_recipe(TEXT)
        self.assertEqual(found, expected)
        self.assertIs(type(found["roles"]["student"]["world"]["dp"]), int)

    def test_names_the_line_that_it_cannot_read(self):
        for text in (
            "a: 1\nb",
            "a: 1\nb: [1",
            "a: 1\nb: {c}",
            "a: 1\nb: 1 2",
            'a: 1\nb: "x',
            "a: 1\n  b: 1",
        ):
            with self.assertRaises(ValueError, msg=text) as caught:
                parse_recipe(text)
            self.assertIn("line 2: ", str(caught.exception))
