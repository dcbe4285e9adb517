#!/usr/bin/env python3
"""Preference pairs from GSM8K's example_model_solutions.jsonl: a model's right solution over a
wrong one of the same question.

    python recipes/configs/gsm8k_pairs.py example_model_solutions.jsonl --output runs/recipes/gsm8k

writes pairs.jsonl (training) and test_pairs.jsonl (held out) with prompt, chosen and rejected. The
file (public repository openai/grade-school-math, MIT) has 1,319 questions, each with solutions of
four models and whether their last line is right. No question is in both files. The calculator's
marks (<<16-3=13>>) are left out.
"""

import argparse
import itertools
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
    pairs = []
    for c, r in itertools.product(right, wrong):
        pair = {"prompt": row["question"] + "\n"}
        pair |= {"chosen": text_of(row, c), "rejected": text_of(row, r)}
        pairs.append(pair | {"chosen_by": c, "rejected_by": r})
    pairs = [p for p in pairs if max(len(p["chosen"]), len(p["rejected"])) <= args.max_characters]
    draw.shuffle(pairs)
    return pairs[: args.per_question]


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("solutions", help="example_model_solutions.jsonl")
    add("--output", required=True, help="folder to write to")

    # Which solutions are compared.
    models = dict(nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    add("--chosen", **models, help="whose right solutions are taken")
    add("--rejected", **models, help="whose wrong solutions")
    text = "of a solution; pairs with a longer one are left out"
    add("--max-characters", type=int, default=600, help=text)
    add("--per-question", type=int, default=1, help="most pairs of one question")

    # Which questions are held out.
    text = "pairs of test_pairs.jsonl; the other questions are for training"
    add("--held-out", type=int, default=256, help=text)
    text = "of the order of the questions and of the pairs that are drawn"
    add("--seed", type=int, default=1, help=text)
    text = "the same pairs, held out from the first question on, from a third or from two thirds "
    text += "of them on"
    add("--split", type=int, choices=(1, 2, 3), default=1, help=text)
    return parser.parse_args()


def main():
    args = parse_arguments()
    draw = random.Random(args.seed)
    rows = [json.loads(line) for line in open(args.solutions, encoding="utf-8")]
    draw.shuffle(rows)

    # All pairs of a question go into the same file, the first ones into the held-out one.
    groups = [group for group in (pairs_of(row, args, draw) for row in rows) if group]
    start = len(groups) * (args.split - 1) // 3
    test, train = [], []
    for group in groups[start:] + groups[:start]:
        file = test if len(test) < args.held_out else train
        file += group

    output = pathlib.Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("test_pairs.jsonl", test), ("pairs.jsonl", train)):
        lines = [json.dumps(pair) + "\n" for pair in pairs]
        (output / name).write_text("".join(lines), encoding="utf-8")

        # A judge that always takes the shorter solution would be right so often; ties count half.
        lengths = [(len(p["chosen"]), len(p["rejected"])) for p in pairs]
        shorter = sum((c < r) + 0.5 * (c == r) for c, r in lengths) / max(1, len(lengths))
        share = f"the right solution is the shorter one in {shorter:.3f} of them"
        print(f"{output / name}: {len(pairs)} pairs; {share}")


if __name__ == "__main__":
    main()
