#!/usr/bin/env python3
"""Preference pairs from GSM8K's example_model_solutions.jsonl: a model's right solution over a wrong one of the same question.

    python recipes/configs/gsm8k_pairs.py example_model_solutions.jsonl --output runs/recipes/gsm8k

writes pairs.jsonl (training) and test_pairs.jsonl (held out) with prompt, chosen and rejected. The file (public repository
openai/grade-school-math, MIT) has 1,319 questions, each with solutions of four models and whether their last line is right.
No question is in both files. The calculator's marks (<<16-3=13>>) are left out.
"""

import argparse
import json
import pathlib
import random
import re

MODELS = ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"]


def text_of(row, model):
    return re.sub(r"<<.*?>>", "", row[model]["solution"])


def pairs_of(row, args, draw):
    """Up to args.per_question pairs of a question, drawn among those that are short enough."""
    right = [m for m in args.chosen if row[m]["is_correct"]]
    wrong = [m for m in args.rejected if not row[m]["is_correct"]]
    pairs = [{"prompt": row["question"] + "\n", "chosen": text_of(row, c), "rejected": text_of(row, r), "chosen_by": c, "rejected_by": r}
             for c in right for r in wrong]
    pairs = [p for p in pairs if max(len(p["chosen"]), len(p["rejected"])) <= args.max_characters]
    draw.shuffle(pairs)
    return pairs[:args.per_question]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solutions", help="example_model_solutions.jsonl")
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument("--chosen", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL", help="whose right solutions are taken")
    parser.add_argument("--rejected", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL", help="whose wrong solutions")
    parser.add_argument("--held-out", type=int, default=256, help="pairs of test_pairs.jsonl; the other questions are for training")
    parser.add_argument("--per-question", type=int, default=1, help="most pairs of one question")
    parser.add_argument("--max-characters", type=int, default=600, help="of a solution; pairs with a longer one are left out")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the questions and of the pairs that are drawn")
    parser.add_argument("--split", type=int, choices=(1, 2, 3), default=1,
                        help="the same pairs, held out from the first question on, from a third or from two thirds of them on")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    rows = [json.loads(line) for line in open(args.solutions, encoding="utf-8")]
    draw.shuffle(rows)
    groups = [group for group in (pairs_of(row, args, draw) for row in rows) if group]
    start = len(groups) * (args.split - 1) // 3
    groups = groups[start:] + groups[:start]
    files = {"test_pairs.jsonl": [], "pairs.jsonl": []}
    for group in groups:
        files["test_pairs.jsonl" if len(files["test_pairs.jsonl"]) < args.held_out else "pairs.jsonl"] += group
    output = pathlib.Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    for name, pairs in files.items():
        (output / name).write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
        lengths = [(len(p["chosen"]), len(p["rejected"])) for p in pairs]
        shorter = sum((c < r) + 0.5 * (c == r) for c, r in lengths) / max(1, len(lengths))
        print(f"{output / name}: {len(pairs)} pairs; the right solution is the shorter one in {shorter:.3f} of them")


if __name__ == "__main__":
    main()
