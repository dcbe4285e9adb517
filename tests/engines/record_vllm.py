"""Records what a running vLLM answers to the requests of our adapter.

    python3 record_vllm.py http://127.0.0.1:8000 recorded/vllm-0.32.0 WEIGHTS

The server: a small model in float32 with 416 rows, of which 400 are the tokenizer's ids, and
    --max-model-len 128 --max-logprobs 24 --served-model-name m
and VLLM_SERVER_DEV_MODE=1; WEIGHTS is the folder of its model, which it reloads.
vllm_recorded_test.cc asks the same through the adapter: a request that differs from the recorded
one in anything but its request_id fails there, and so does a number that is read differently.

Of the ids that are named for each position (vllm_named_test.cc), with that server started with
--enable-scale-out and VLLM_USE_V2_MODEL_RUNNER=1 (vllm_test.py says how, on a CPU):

    python3 record_vllm.py http://127.0.0.1:8000 recorded/vllm-0.32.0-named WEIGHTS named

and of one that lacks the first, or the second: `closed`, or `runner`, for `named`.
"""
import json
import pathlib
import sys
import urllib.error
import urllib.request

URL = sys.argv[1]
RECORDED = pathlib.Path(sys.argv[2])
WEIGHTS = sys.argv[3]
PART = sys.argv[4] if len(sys.argv) > 4 else "usual"
FOLDERS = [WEIGHTS]  # of the machine, which no recording names
PROMPT = [10, 21, 32, 43, 54]
TEXT = [7, 160, 23, 310, 2, 2, 55, 23, 310, 99, 301, 12]  # scored
NUM_IDS = 400
ROWS = 416


def ask(method, path, body):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        URL + path, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.headers.get("Content-Type"), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Content-Type"), error.read().decode()


def record(name, method, path, body=None):
    status, content_type, text = ask(method, path, body)
    request = {"method": method, "path": path, "body": body}
    answer = {"status": status, "content_type": content_type, "body": text}
    lines = f'{{"request": {json.dumps(request)},\n "answer": {json.dumps(answer)}}}\n'
    for folder in FOLDERS:
        lines = lines.replace(folder, "/model")
    (RECORDED / f"{name}.json").write_text(lines)
    print(f"{name}: {status}, {len(text)} bytes")
    return json.loads(text) if text.startswith("{") else None


def neutral(prompt, **more):
    """What the adapter sends for every completion, and what it says otherwise."""
    body = {
        "model": "m",
        "prompt": prompt,
        "n": 1,
        "echo": False,
        "stream": False,
        "add_special_tokens": False,
        "return_token_ids": True,
        "max_tokens": 1,
        "min_tokens": 0,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "watermarking": False,
        "ignore_eos": True,
        "stop": [],
        "stop_token_ids": [],
        "skip_special_tokens": True,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    return {**body, **more}


def draw(name, **more):
    body = neutral(
        PROMPT,
        logprobs=0,
        return_tokens_as_token_ids=True,
        logit_bias={str(i): -100.0 for i in range(NUM_IDS, ROWS)},
        **{"max_tokens": 12, "temperature": 1.0, "seed": 17, "stop_token_ids": [2], **more},
    )
    return record(name, "POST", "/v1/completions", body)["choices"][0]


def score(name, **more):
    record(name, "POST", "/v1/completions", neutral(TEXT[:9], **more))


def name_ids(name, rows):
    body = {
        "model": "m",
        "token_ids": TEXT[:7],
        "stream": False,
        "sampling_params": {
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprob_start": 2,
            "prompt_logprob_token_ids": rows,
        },
    }
    record(name, "POST", "/inference/v1/generate", body)


# The three most probable of positions 2, 3 and 5, the least of them first; position 4 is between.
def named():
    top = record("top", "POST", "/v1/completions", neutral(TEXT[:7], prompt_logprobs=3))
    entries = top["choices"][0]["prompt_logprobs"]
    rows = []
    for position in (2, 3, 3, 5):
        best = [(entry["rank"], int(id)) for id, entry in entries[position + 1].items()]
        rows.append([id for rank, id in sorted(best, reverse=True) if rank <= 3])
    name_ids("named", rows)
    name_ids("too-many", [list(range(25))] * 4)
    name_ids("unknown-id", [[ROWS]] * 4)


def main():
    RECORDED.mkdir(parents=True, exist_ok=True)
    if PART == "named":
        return named()
    if PART != "usual":
        return name_ids(PART, [[1]] * 4)

    record("health", "GET", "/health")
    record("version", "GET", "/version")
    record("models", "GET", "/v1/models")
    limit = dict(method="POST", path="/v1/completions")
    record("limit-allowed", body=neutral([0], prompt_logprobs=2**31 - 1), **limit)
    record("limit-rows", body=neutral([0], prompt_logprobs=-1), **limit)

    # The same seed draws the same tokens, so that an end token and a stop string can be named.
    drawn = draw("draw-length")
    draw("draw-end", stop_token_ids=[2, drawn["token_ids"][5]])
    draw("draw-stop", stop=[drawn["text"][5:8], "never"])
    draw("draw-sampled", temperature=0.7, top_p=0.9, top_k=40, repetition_penalty=1.2, seed=-3)
    draw("draw-least", min_p=0.05, seed=5)
    draw("draw-greedy", temperature=0.0)

    score("score-given", prompt_logprobs=0)
    score("score-top", prompt_logprobs=3)
    score("score-too-many", prompt_logprobs=25)
    record("score-unknown-id", "POST", "/v1/completions", neutral([7, 999, 1], prompt_logprobs=0))
    record("score-too-long", "POST", "/v1/completions", neutral([7] * 128, prompt_logprobs=0))

    body = {"method": "reload_weights", "kwargs": {"weights_path": WEIGHTS}}
    record("reload", "POST", "/collective_rpc", body)
    record("reset", "POST", "/reset_prefix_cache")
    record("tiny", "POST", "/v1/completions", neutral([0, 0], prompt_logprobs=0))


main()
