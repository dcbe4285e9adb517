# Distillation steps from a teacher with another tokenizer: `retort launch` with cross_tokenizer
# beside the same teacher with the student's tokenizer, and beside TRL's GOLDTrainer; same rows,
# batch and sizes of the models, fp32, `--threads` cores in all.
#   python bench/cross_against_trl.py --retort build/bin/retort --data train.jsonl \
#       [--way uld | gold] [--steps 12] [--rounds 2] [--threads 2] [--only-ours]
# `--data`: JSONL with question/answer (GSM8K) or prompt/completion rows. The student has 8,192
# tokens of these texts, the teacher 6,000 of their first half; weights are random. Needs torch,
# transformers and trl 1.16 (`./dev goldens` makes such an environment).
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from against import QUIET, SHAPES, in_own_process, init_model, write_jsonl, write_rows

ROWS = 8
MAX_LENGTH = 512


def prepare(args, work):
    write_rows(args.data, work / "rows.jsonl", args.steps * ROWS)
    rows = [json.loads(line) for line in open(args.data)]
    text = lambda row: {"text": "\n".join(str(value) for value in row.values())}
    write_jsonl(work / "first.jsonl", map(text, rows[: len(rows) // 2]))
    write_jsonl(work / "all.jsonl", map(text, rows))
    for name, data, size in (("mine", "all", 8192), ("theirs", "first", 6000)):
        command = [args.retort, "tokenizer", "train", "--data", str(work / f"{data}.jsonl")]
        size = ["--vocab-size", str(size), "--output", str(work / name)]
        subprocess.run([*command, *size], **QUIET)
    for name, tokenizer in (("student", "mine"), ("teacher", "theirs"), ("same", "mine")):
        shape = SHAPES["cpu", "model" if name == "student" else "teacher"]
        init_model(args.retort, work / tokenizer, work / name, shape)


def run_retort(args, work, teacher, way):
    each = max(1, args.threads // 2)
    (work / "recipe.yaml").write_text(f"""recipe: distill
output_dir: {work}/run
seed: 1
roles:
  student: {{model: {work}/student, world: {{threads: {each}}}}}
  teacher: {{model: {work}/{teacher}, world: {{threads: {each}}}}}
data:
  train: [{{path: {work}/rows.jsonl}}]
  max_length: {MAX_LENGTH}
  packing: false
  shuffle: false
distill: {{teachers: [{{role: teacher}}], cross_tokenizer: {way}}}
train:
  max_steps: {args.steps}
  per_device_train_batch_size: {ROWS}
  learning_rate: 1.0e-4
  lr_scheduler_type: constant
  save_steps: 0
""")
    subprocess.run([args.retort, "launch", str(work / "recipe.yaml"), "--overwrite"], **QUIET)
    return [json.loads(line) for line in open(work / "run/metrics.jsonl")]


def run_trl(args, work):
    import torch
    from against_trl import SETTINGS, Clock
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.experimental.gold import GOLDConfig, GOLDTrainer

    torch.set_num_threads(args.threads)
    load = lambda name: AutoModelForCausalLM.from_pretrained(work / name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(work / "student")
    clock = Clock()
    settings = {key: value for key, value in SETTINGS.items() if key != "temperature"}
    config = GOLDConfig(
        output_dir=str(work / "trl"),
        max_steps=args.steps,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=1,
        lmbda=0.0,
        use_uld_loss=True,
        use_extended_uld=True,
        uld_token_merge_strategy="bayesian",
        uld_crossentropy_weight=0.0,
        uld_distillation_weight=1.0,
        uld_use_hybrid_loss=args.way == "gold",
        teacher_tokenizer_name_or_path=str(work / "teacher"),
        max_length=MAX_LENGTH,
        max_completion_length=MAX_LENGTH // 2,
        logging_steps=1,
        **settings,
    )
    GOLDTrainer(
        model=load("student"),
        teacher_model=load("teacher"),
        args=config,
        train_dataset=load_dataset("json", data_files=str(work / "rows.jsonl"), split="train"),
        processing_class=tokenizer,
        callbacks=[clock],
    ).train()
    return {"times": clock.times, "losses": [log["loss"] for log in clock.logs if "loss" in log]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--data", required=True)
    parser.add_argument("--way", choices=["uld", "gold"], default="uld")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only-ours", action="store_true", help="without TRL")
    parser.add_argument("--reference", help=argparse.SUPPRESS)  # the second process of the script
    args = parser.parse_args()
    if args.reference:
        print(json.dumps(run_trl(args, pathlib.Path(args.reference))))
        return

    # The first steps are for warming up.
    median = lambda times: statistics.median(times[3:])
    seconds = lambda rows: median([row["step_time"] for row in rows])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(args, work)
        for number in range(args.rounds):
            same = seconds(run_retort(args, work, "same", "none"))
            rows = run_retort(args, work, "teacher", args.way)
            other = seconds(rows)
            share = rows[-1]["one_to_one_groups"]
            print(f"same tokenizer {same:.3f} s a step, {args.way} {other:.3f}: {other / same:.2f}")
            print(f"  groups of one token on each side: {share:.2f}")
            if args.only_ours:
                continue
            trl = in_own_process(__file__, args, work)
            theirs = median(trl["times"])
            print(f"  TRL {theirs:.3f} s a step: {theirs / other:.2f} times as long")
            print(f"  last losses: {rows[-1]['loss']:.5f}, TRL's {trl['losses'][-1]:.5f}")


if __name__ == "__main__":
    main()
