# On-policy distillation steps of `retort launch` beside TRL's DistillationTrainer: same models,
# prompts, completion length, reverse KL over the whole vocabulary, fp32, `--threads` cores in all.
#   python bench/on_policy_against_trl.py --retort build/bin/retort --data train.jsonl \
#       [--steps 12] [--threads 2]
# `--data`: JSONL with question/answer (GSM8K) or prompt/completion rows. Needs torch, transformers
# and trl 1.16 (`./dev goldens` makes such an environment). End tokens are out of reach for random
# weights, so that all completions have --new-tokens tokens.
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from against import QUIET, SHAPES, in_own_process, init_model, train_tokenizer, write_jsonl

ROWS = 8


def prompts(source, count):
    rows = [json.loads(line) for line in open(source)][:count]
    return [row.get("question", row.get("prompt")) for row in rows]


def run_retort(retort, work, args):
    recipe = work / "opd.yaml"
    teacher_threads = max(1, args.threads // 2)
    recipe.write_text(f"""recipe: on_policy_distill
output_dir: {work}/run
roles:
  student: {{model: {work}/student, world: {{threads: {args.threads}}}}}
  teacher: {{model: {work}/teacher, world: {{threads: {teacher_threads}}}}}
  generator: {{model: {work}/student, world: {{threads: {args.threads}}}}}
data: {{train: [{{path: {work}/rows.jsonl}}], max_length: 512, packing: false, shuffle: false}}
generation: {{max_new_tokens: {args.new_tokens}}}
distill: {{teachers: [{{role: teacher}}], loss_type: reverse_kl}}
train:
  max_steps: {args.steps}
  per_device_train_batch_size: {ROWS}
  learning_rate: 1.0e-6
  lr_scheduler_type: constant
  save_steps: 0
""")
    subprocess.run([retort, "launch", str(recipe), "--overwrite"], **QUIET)
    return [json.loads(line)["step_time"] for line in open(work / "run/metrics.jsonl")]


def run_trl(work, args):
    import torch
    from against_trl import SETTINGS, Clock
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DistillationConfig, DistillationTrainer

    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(work / "student")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    load = lambda name: AutoModelForCausalLM.from_pretrained(work / name, dtype=torch.float32)
    clock = Clock()

    rows = [json.loads(line) for line in open(work / "rows.jsonl")]
    chat = lambda row: [{"role": "user", "content": row["prompt"]}]
    data = Dataset.from_list([{"prompt": chat(row)} for row in rows])

    # beta 1: reverse KL, over the whole vocabulary.
    config = DistillationConfig(
        output_dir=str(work / "trl"),
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=1,
        max_steps=args.steps,
        beta=1.0,
        top_p=1.0,
        max_completion_length=args.new_tokens,
        logging_steps=1000,
        **SETTINGS,
    )

    DistillationTrainer(
        model=load("student"),
        teacher_model=load("teacher"),
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[clock],
    ).train()
    return clock.times


def prepare(args, work):
    """Rows, a tokenizer of their texts, a random student and a larger random teacher, in `work`."""
    texts = prompts(args.data, args.steps * ROWS)
    write_jsonl(work / "rows.jsonl", ({"prompt": text + "\n", "completion": "x"} for text in texts))
    train_tokenizer(args.retort, args.data, work / "tokenizer")
    for name, shape in (("student", "model"), ("teacher", "teacher")):
        shape = SHAPES["cpu", shape].replace("qwen2", "llama")
        init_model(args.retort, work / "tokenizer", work / name, shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--retort", default="build/bin/retort")
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--reference", help=argparse.SUPPRESS)  # the second process of the script
    args = parser.parse_args()
    if args.reference:
        print(json.dumps({"times": run_trl(pathlib.Path(args.reference), args)}))
        return

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(args, work)
        ours = run_retort(args.retort, work, args)
        theirs = in_own_process(__file__, args, work)["times"]

    # The first two steps are for warming up.
    median = lambda times: statistics.median(times[2:])
    tokens = ROWS * args.new_tokens
    for name, times in (("retort", ours), ("trl", theirs)):
        rate = tokens / median(times)
        print(f"{name:8} {median(times):8.3f} s a step  {rate:8.0f} generated tokens/s")
    print(f"ratio: {median(theirs) / median(ours):.2f}")


if __name__ == "__main__":
    main()
