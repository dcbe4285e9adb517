"""Opens what whole runs leave with the libraries that it is for, and compares numbers: an adapter
with PEFT, a reward model and a language model with transformers.

Run:  python tests/recipes/open_checkpoints.py --retort build/bin/retort
in the environment of the golden files (`./dev goldens`); prints a line for each, and fails if one
differs by more than 1e-5.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import torch
from make_goldens import OUT, ROWS
from make_lora_goldens import first_rows
from make_reward_goldens import loss_of, make_rows
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

LIMIT = 1e-5
NUM_ROWS = ROWS


def launched(retort, recipe, folder):
    """The folder of a finished run."""
    run = folder / "run"
    text = recipe.replace("$GOLDENS", str(OUT.resolve())).replace("$RUN", str(run))
    folder.mkdir()
    (folder / "recipe.yaml").write_text(text)
    subprocess.run([retort, "launch", folder / "recipe.yaml"], check=True, capture_output=True)
    return run


def evaluated(retort, model, folder):
    """The log-probabilities of each token of the first rows but the first, by `retort eval`."""
    output = folder / "logps.jsonl"
    command = [retort, "eval", "--model", model, "--data", OUT / "rows.jsonl", "--output", output]
    subprocess.run(command, check=True, capture_output=True)
    lines = output.read_text().splitlines()[:NUM_ROWS]
    return [torch.tensor(json.loads(line)["logps"]) for line in lines]


def log_probs(model):
    rows = [json.loads(line) for line in (OUT / "rows.jsonl").read_text().splitlines()[:NUM_ROWS]]
    return [torch.tensor(logps) for logps in first_rows(rows, model)]


def check(what, error):
    print(f"{what}: largest difference {error:.1e}")
    if not error <= LIMIT:
        raise SystemExit(f"{what} differs by more than {LIMIT}")


def largest_difference(some, others):
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


def check_adapter(retort, folder):
    recipe = json.loads((OUT / "lora.json").read_text())["sft_qwen3"]["recipe"]
    final = launched(retort, recipe, folder) / "final"
    base = json.loads((final / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base).float()
    before = log_probs(model.eval())
    opened = log_probs(PeftModel.from_pretrained(model, final).eval())
    if largest_difference(before, opened) < 100 * LIMIT:
        raise SystemExit("the adapter changes nothing, so that nothing was compared")
    check("adapter in PEFT", largest_difference(opened, evaluated(retort, final, folder)))

    merged = folder / "merged"
    command = [retort, "model", "merge", final, "--output", merged]
    subprocess.run(command, check=True, capture_output=True)
    alone = AutoModelForCausalLM.from_pretrained(merged).float().eval()
    check("merged model in transformers", largest_difference(opened, log_probs(alone)))


def check_reward_model(retort, folder):
    recipe = json.loads((OUT / "reward.json").read_text())["bradley_terry"]["recipe"]
    run = launched(retort, recipe, folder)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    said = [row for row in rows if "eval_loss" in row][-1]
    model = AutoModelForSequenceClassification.from_pretrained(run / "final").float().eval()
    with torch.no_grad():
        loss, means = loss_of(model, make_rows(), {}, model.config.pad_token_id)
    check("reward model in transformers, loss", abs(loss.item() - said["eval_loss"]))
    mean = abs(means["mean_reward"] - said["eval_mean_reward"])
    check("reward model in transformers, mean reward", mean)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--retort", required=True, type=pathlib.Path)
    retort = parser.parse_args().retort.resolve()
    with tempfile.TemporaryDirectory() as name:
        check_adapter(retort, pathlib.Path(name) / "adapter")
        check_reward_model(retort, pathlib.Path(name) / "reward")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
