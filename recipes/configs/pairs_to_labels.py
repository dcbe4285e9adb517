#!/usr/bin/env python3
"""Single judged answers from preference pairs: what kto learns from.

    python recipes/configs/pairs_to_labels.py runs/recipes/pairs.jsonl runs/recipes/labels.jsonl

A row of prompt, chosen and rejected becomes two rows of prompt, completion and label. All chosen
answers come first, then all rejected ones: a row's neighbour has another prompt, as the mismatched
completions of an evaluation need. --chosen 0.5 keeps half of the chosen answers, drawn at random;
likewise --rejected.
"""

import argparse
import json
import random


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("pairs", help="JSONL of prompt, chosen and rejected")
    add("output", help="JSONL to write")
    add("--chosen", type=float, default=1.0, help="share of the chosen answers that are kept")
    add("--rejected", type=float, default=1.0, help="share of the rejected answers that are kept")
    add("--seed", type=int, default=1, help="of what is left out")
    return parser.parse_args()


def main():
    args = parse_arguments()
    draw = random.Random(args.seed)
    pairs = [json.loads(line) for line in open(args.pairs, encoding="utf-8")]
    sides = (("chosen", args.chosen, True), ("rejected", args.rejected, False))
    with open(args.output, "w", encoding="utf-8") as file:
        for side, share, label in sides:
            kept = [pair for pair in pairs if draw.random() < share]
            for pair in kept:
                row = {"prompt": pair["prompt"], "completion": pair[side], "label": label}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(f"{len(kept)} rows with label {str(label).lower()}")


if __name__ == "__main__":
    main()
