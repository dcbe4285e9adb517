"""What an ordinary user does with an installed wheel: wheel_test starts it in a folder with data/.

--full: also what needs pandas, wandb and MLflow.
"""
import glob
import json
import sys
import time

import retort

FULL = "--full" in sys.argv[1:]
STARTED = time.monotonic()
REWARDS = '''
print("imported")

def score(row):
    print("scoring", row["completion"])          # must not disturb the answers
    return min(len(row["completion"]), 20) / 20

def broken(row):
    raise ValueError("no such answer")
'''


def say(text):
    print(f"== [{time.monotonic() - STARTED:3.0f} s] {text}", file=sys.stderr, flush=True)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def recipe(name):
    return f"{retort.recipes_folder()}/{name}.yaml"


def distill_is_read():
    run = retort.launch(
        recipe("distill"),
        {
            "output_dir": "runs/a distillation",
            "roles.student.model": "data/student",
            "roles.teacher.model": "data/teacher",
            "data.train": [{"path": "data/train.jsonl"}],
            "data.eval": [{"path": "data/test.jsonl"}],
            "train.max_steps": 12,
            "train.eval_steps": 6,
            "train.logging_steps": 2,
        },
        quiet=True,
    )
    check(run.status()["state"] == "done" and run.status()["step"] == 12, run.status())
    check([row["step"] for row in run.metrics_rows()] == [2, 4, 6, 8, 10, 12], run.metrics_rows())
    check([row["step"] for row in run.evaluations_rows()] == [6, 12], run.evaluations_rows())
    check(run.recipe()["train"]["max_steps"] == 12, run.recipe()["train"])

    result = retort.eval(run.final, "data/test.jsonl")
    last = run.evaluations_rows()[-1]["eval_loss"]
    check(abs(result["loss"] - last) < 1e-5 * last, f"{result} beside {last}")
    return run


# A run that stops after every two steps, so that it has to go on once; None: it is not tracked.
def drawn(folder, reward, tracker=None, **flags):
    overrides = {
        "output_dir": folder,
        "roles.student.model": "data/student",
        "roles.generator.model": "data/student",
        "data.train": [{"path": "data/train.jsonl"}],
        "data.eval": None,
        "generation": {"num_generations": 4, "max_new_tokens": 8, "save_samples": True},
        "rewards": [
            {"type": "command", "argv": [sys.executable, "-m", "retort.reward", reward]},
        ],
        "train.max_steps": 4,
        "train.exit_interval": 2,
        "train.eval_steps": None,
        "train.per_device_train_batch_size": 8,
        "train.gradient_accumulation_steps": 1,
    }
    if tracker:
        track = [sys.executable, "-m", "retort.track", tracker, folder, "--project", "of a test"]
        overrides["launch.metrics_command"] = track
    return retort.launch(recipe("grpo"), overrides, quiet=True, **flags)


def stopped_and_resumed(folder, tracker=None):
    try:
        drawn(folder, "my_rewards:score", tracker)
    except retort.CommandError as error:
        check(error.exit_code == 4, error)
    else:
        check(False, "train.exit_interval stopped nothing")
    return drawn(folder, "my_rewards:score", tracker, resume=True)


def function_is_a_reward(tracker=None):
    run = stopped_and_resumed("runs/a reward", tracker)
    rows = run.samples_rows()
    check({row["step"] for row in rows} == {1, 2, 3, 4} and len(rows) == 32, f"{len(rows)} rows")
    for row in rows:
        expected = min(len(row["completion"]), 20) / 20
        check(abs(row["reward"] - expected) < 1e-12, row)
    check(len({row["reward"] for row in rows}) > 1, "every completion has the same reward")
    return run


def broken_function_is_named():
    try:
        drawn("runs/broken", "my_rewards:broken")
    except retort.CommandError as error:
        for part in ("my_rewards:broken raised ValueError: no such answer", '"question": '):
            check(part in error.message, f"'{part}' is not in: {error}")
    else:
        check(False, "a function that raises did not end the run")


def frames(distilled, rewarded):
    import pandas

    for method in ("metrics", "evaluations"):
        frame = getattr(distilled, method)()
        rows = getattr(distilled, f"{method}_rows")()
        known = [frame.iloc[i].dropna().to_dict() for i in range(len(frame))]
        check(known == rows, f"{frame} beside {rows}")
        check(all(pandas.api.types.is_numeric_dtype(kind) for kind in frame.dtypes), frame.dtypes)
    check(len(rewarded.samples()) == 32 and len(rewarded.samples(step=2)) == 8, "samples")
    check(distilled.samples().empty and distilled.receipts().empty, "a run without samples")


def trackers(run):
    # What the run fed is MLflow's, over both of its lives.
    import mlflow

    found = mlflow.search_runs(search_all_experiments=True, output_format="list")
    check(len(found) == 1, f"{len(found)} runs of MLflow instead of one that was continued")
    check(found[0].info.run_name == "a reward", found[0].info.run_name)
    check(found[0].data.params["train.max_steps"] == "4", found[0].data.params)
    history = mlflow.MlflowClient().get_metric_history(found[0].info.run_id, "loss")
    fed = [(metric.step, metric.value) for metric in history]
    check(fed == [(row["step"], row["loss"]) for row in run.metrics_rows()], fed)

    tracked = stopped_and_resumed("runs/of wandb", "wandb")
    files = sorted(glob.glob("wandb/offline-run-*/*.wandb"))
    check(len(files) == 2 and len({path.rsplit("-", 1)[1] for path in files}) == 1, files)
    rows = tracked.metrics_rows()
    for path, half in zip(files, (rows[:2], rows[2:])):
        content = open(path, "rb").read()
        for row in half:
            check(json.dumps(row["loss"]).encode() in content, f"{row['loss']} is not in {path}")


with open("my_rewards.py", "w") as file:
    file.write(REWARDS)
say("a distillation, from Python")
DISTILLED = distill_is_read()
say("a function as a reward, in a run that is stopped and goes on")
REWARDED = function_is_a_reward("mlflow" if FULL else None)
broken_function_is_named()
if FULL:
    say("pandas, MLflow and wandb")
    frames(DISTILLED, REWARDED)
    trackers(REWARDED)
