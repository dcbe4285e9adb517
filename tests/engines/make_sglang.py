#!/usr/bin/env python3
"""Builds the exchanges of tests/engines/recorded/sglang-0.5.23 from SGLang's own code.

    pip download --no-deps sglang==0.5.23, unpacked into WHEEL
    python3 make_sglang.py WHEEL            # needs msgspec, numpy, orjson, pybase64

No SGLang server runs: its wheel needs a GPU. So requests are written here as the adapter must send
them, and handed to the release's own check of them (sglang/api/v1/api_types.py); answers are put
together as the release does, by its own functions where these do not need a model, taken out of its
files one by one. Log-probabilities are a toy's. Where a line of the release was copied instead, it
is named beside it, below sglang/srt. In texts ${rid} stands for what the request had there.
"""

import ast
import importlib.util
import json
import math
import pathlib
import sys
import types
import typing

import msgspec
import numpy as np
import orjson
import pybase64

VOCAB = 416
OUT = pathlib.Path(__file__).parent / "recorded" / "sglang-0.5.23"
WHEEL = pathlib.Path(sys.argv[1]) / "sglang"


def taken(path, *names, **known):
    """Functions and classes of one of the release's files, without importing it."""
    space = {**vars(typing), "np": np, "msgspec": msgspec, "math": math, **known}
    tree = ast.parse((WHEEL / "srt" / path).read_text())
    wanted = {}
    for node in ast.walk(tree):
        if getattr(node, "name", None) in names and isinstance(
            node, (ast.FunctionDef, ast.ClassDef)
        ):
            wanted.setdefault(node.name, node)
        # Plain constants, which they may use.
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.BinOp)):
            try:
                exec(compile(ast.Module([node], []), path, "exec"), space)
            except Exception:
                pass
    for node in wanted.values():
        exec(compile(ast.Module([node], []), path, "exec"), space)
    assert set(names) <= set(space), (path, names)
    return types.SimpleNamespace(**{name: space[name] for name in names})


io = taken(
    "managers/io_struct.py", "flat_top_logprobs_layout", "build_flat_top_logprobs_arrays"
)
manager = taken(
    "managers/tokenizer_manager.py",
    "_build_flat_top_logprobs_fields_from_arrays",
    "detokenize_logprob_tokens",
    "detokenize_top_logprobs_tokens",
    pybase64=pybase64,
    BatchStrOutput=None,
    ReqState=None,
)
rows = taken(
    "managers/scheduler_components/logprob_result_processor.py",
    "_process_input_token_logprobs",
    "_process_input_top_logprobs",
    Req=None,
)
finish = taken(
    "managers/schedule_batch.py",
    "BaseFinishReason",
    "FINISH_MATCHED_TOKEN",
    "FINISH_MATCHED_STR",
    "FINISH_LENGTH",
    "FINISH_ABORT",
)
sampling = taken("sampling/sampling_params.py", "SamplingParams", WatermarkRequestConfig=dict,
                 CustomParamValue=object, normalize_watermark_request=lambda config: config,
                 get_request_reasoning_end_token_ids=lambda *a, **k: None)
spec = importlib.util.spec_from_file_location("api_types", WHEEL / "api" / "v1" / "api_types.py")
api = importlib.util.module_from_spec(spec)
sys.modules["api_types"] = api
spec.loader.exec_module(api)


def log_probs(prefix, temperature=1.0, bias=None):
    logits = np.random.default_rng([len(prefix), *prefix]).normal(0, 2, VOCAB).astype(np.float32)
    if bias:
        for token, value in bias.items():
            logits[int(token)] += np.float32(value)
    logits = logits / np.float32(temperature)
    top = logits.max()
    return logits - (top + np.log(np.exp(logits - top).sum(dtype=np.float32)))


def params(**changed):
    return {
        "max_new_tokens": 0,
        "min_new_tokens": 0,
        "n": 1,
        "beam_width": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": None,
        "sampling_seed": None,
        "ignore_eos": True,
        "stop": [],
        "stop_regex": [],
        "stop_token_ids": [],
        "no_stop_trim": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": False,
        "json_schema": None,
        "regex": None,
        "ebnf": None,
        "structural_tag": None,
        "stream_interval": None,
        "custom_params": None,
        "watermark": {"enabled": False},
        **changed,
    }


def generate(input_ids, sampling_params, **changed):
    body = {
        "input_ids": input_ids,
        "sampling_params": sampling_params,
        "stream": False,
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "return_text_in_logprobs": False,
        "return_flat_raw_top_logprobs": False,
        "return_flat_raw_output_top_logprobs": False,
        "return_flat_raw_top_logprobs_b64": False,
        "return_hidden_states": False,
        "lora_path": None,
        **changed,
    }
    api.GenerateRequest.from_json_value({**body, "rid": "x", "cache_salt": None})
    sampling.SamplingParams(**sampling_params)
    return body


def as_json(content):
    """utils/json_response.py:15."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(content, option=options).decode()


def put(name, method, path, body, status, content_type, text):
    request = {"method": method, "path": path, "body": body}
    answer = {"status": status, "content_type": content_type, "body": text}
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"request": request, "answer": answer}, indent=1)
    (OUT / (name + ".json")).write_text(text + "\n")


def meta(reason, prompt_tokens, completion_tokens, cached_tokens=0):
    """managers/tokenizer_manager.py:2507; then :2555 and :2753, after the log-probabilities."""
    first = {
        "id": "${rid}",
        "finish_reason": reason.to_json(),
        "prompt_tokens": prompt_tokens,
        "weight_version": "${weight_version}",
        "num_retractions": 0,
    }
    last = {
        "reasoning_tokens": 0,
        "completion_tokens": completion_tokens,
        "cached_tokens": cached_tokens,
        "e2e_latency": 0.25,
    }
    return first, last


def listed(values, ids):
    return manager.detokenize_logprob_tokens(None, values, ids, False)


def draw(name, drawn, reason, sampling_params, text="toy"):
    prompt = [10, 21, 32, 43, 54]
    sampling_params = params(
        **{
            "max_new_tokens": 12,
            "logit_bias": {str(i): -100.0 for i in range(400, VOCAB)},
            "sampling_seed": 17,
            "stop_token_ids": [2],
            "ignore_eos": False,
            **sampling_params,
        }
    )
    numbers, given = [], list(prompt)
    for token in drawn:
        temperature = sampling_params["temperature"] or 1.0
        row = log_probs(given, temperature, sampling_params["logit_bias"])
        numbers.append(float(row[token]))
        given.append(token)
    first, last = meta(reason, len(prompt), len(drawn))
    # add_logprob_to_meta_info, managers/tokenizer_manager.py:2868.
    middle = {
        "input_token_logprobs": [],
        "output_token_logprobs": listed(numbers, drawn),
        "output_token_logprobs_length": len(drawn),
    }
    answer = {"text": text, "output_ids": drawn, "meta_info": {**first, **middle, **last}}
    put(name, "POST", "/generate", generate(prompt, sampling_params), 200,
        "application/json", as_json(answer))


def score(name, token_ids, positions, top_k, nested=False):
    start, sent = positions[0], token_ids[: positions[-1] + 2]
    request = types.SimpleNamespace(
        origin_input_ids=sent,
        logprob_start_len=start,
        logprob=types.SimpleNamespace(top_logprobs_num=top_k),
    )
    # Of each token from the start on, and of the one that would be drawn, what the model says.
    given, tops, ids = [], [], []
    for i in range(start + 1, len(sent) + 1):
        row = log_probs(sent[:i])
        order = np.argsort(-row, kind="stable")[:top_k]
        given.append(float(row[sent[i]]) if i < len(sent) else float(row.max()))
        tops.append([float(row[j]) for j in order])
        ids.append([int(j) for j in order])
    request.temp_input_top_logprobs_val, request.temp_input_top_logprobs_idx = [tops], [ids]
    this = types.SimpleNamespace(
        model_config=types.SimpleNamespace(vocab_size=VOCAB),
        _uses_scoring_positions=lambda req: False,
    )
    rows._process_input_token_logprobs(this, request, given)
    rows._process_input_top_logprobs(this, request)
    kept = request.logprob

    first, last = meta(finish.FINISH_LENGTH(0), len(sent), 0, cached_tokens=start)
    middle = {
        "input_token_logprobs": listed(kept.input_token_logprobs_val,
                                       kept.input_token_logprobs_idx),
        "output_token_logprobs": [],
        "output_token_logprobs_length": 0,
    }
    if top_k:
        values, idx = kept.input_top_logprobs_val, kept.input_top_logprobs_idx
        if nested:
            rows_of = types.SimpleNamespace(
                detokenize_logprob_tokens=lambda *a: manager.detokenize_logprob_tokens(None, *a)
            )
            middle["input_top_logprobs"] = manager.detokenize_top_logprobs_tokens(
                rows_of, values, idx, False
            )
        else:
            middle.update(
                manager._build_flat_top_logprobs_fields_from_arrays(
                    "input", *io.build_flat_top_logprobs_arrays(values, idx, top_k), True
                )
            )
        middle.update(
            manager._build_flat_top_logprobs_fields_from_arrays(
                "output", *io.build_flat_top_logprobs_arrays(tops[-1:], ids[-1:], top_k), True
            )
        )
    body = generate(
        sent,
        params(),
        logprob_start_len=start,
        top_logprobs_num=top_k,
        return_flat_raw_top_logprobs=top_k > 0,
        return_flat_raw_output_top_logprobs=top_k > 0,
        return_flat_raw_top_logprobs_b64=top_k > 0,
    )
    answer = {"text": "", "output_ids": [], "meta_info": {**first, **middle, **last}}
    put(name, "POST", "/generate", None if nested else body, 200, "application/json",
        as_json(answer))


def doors():
    put("ready", "GET", "/ready", None, 200, None, "")  # entrypoints/http_server.py:715
    # entrypoints/http_server.py:816; a server without --served-model-name, and after an update
    # every one (managers/tokenizer_manager.py:2368), calls the model by its folder.
    model = {
        "model_path": "${model_path}",
        "served_model_name": "${model_path}",
        "tokenizer_path": "${model_path}",
        "is_generation": True,
        "preferred_sampling_params": {"temperature": 0.3},
        "weight_version": "${weight_version}",
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
    }
    put("model", "GET", "/model_info", None, 200, "application/json", as_json(model))
    # entrypoints/http_server.py:882: every argument of the server, of which these are read or must
    # not be shown; utils/common.py:3591 adds what managers/scheduler.py:1946 says.
    server = {
        "model_path": "${model_path}",
        "api_key": "of-the-server",
        "admin_api_key": "of-the-admin",
        "context_length": None,
        "enable_deterministic_inference": True,
        "status": "ready",
        "max_total_num_tokens": 4096,
        "max_req_input_len": 123,
        "internal_states": [{"last_gen_throughput": 0.0}],
        "version": "0.5.23",
        "frontend": "python",
    }
    put("server", "GET", "/server_info", None, 200, "application/json", as_json(server))

    # entrypoints/http_server.py:2246 around what SamplingParams.verify raises.
    too_high = params(logit_bias={str(2**31 - 1): 0.0})
    body = generate([0], too_high)
    try:
        sampling.SamplingParams(**too_high).verify(VOCAB)
        raise SystemExit("a logit_bias that is too high is taken")
    except ValueError as error:
        text = as_json({"error": {"message": str(error)}})
    put("vocabulary", "POST", "/generate", body, 400, "application/json", text)

    # managers/tokenizer_manager.py:1341 and 2320, entrypoints/http_server.py:1032, 1036 and 1313,
    # managers/scheduler_components/weight_updater.py:129 and 141, and
    # model_executor/model_runner_components/weight_updater.py:232.
    put("too-long", "POST", "/generate", "never", 400, "application/json",
        as_json({"error": {"message": "The input (200 tokens) is longer than the model's context "
                                      "length (129 tokens)."}}))
    update = {
        "load_format": "auto",
        "flush_cache": True,
        "abort_all_requests": False,
        "is_async": False,
        "torch_empty_cache": False,
        "keep_pause": False,
        "recapture_cuda_graph": False,
        "token_step": 0,
        "manifest": None,
    }

    def updated(success, message):
        return as_json({"success": success, "message": message, "num_paused_requests": 0})

    put("update", "POST", "/update_weights_from_disk", update, 200, "application/json",
        updated(True, "Succeeded to update model weights. Weight version updated to "
                      "${weight_version}."))
    put("update-failed", "POST", "/update_weights_from_disk", "never", 400, "application/json",
        updated(False, "Failed to update weights: no tensor.\nRolling back to original weights."))
    put("update-busy", "POST", "/update_weights_from_disk", "never", 400, "application/json",
        updated(False, "Weights were updated, but the cache was not flushed because requests are "
                       "still running or queued. Retract or finish them, then call /flush_cache."))
    put("flush", "POST", "/flush_cache", None, 200, None,
        "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
        "waiting requests, the operation will not be performed.)\n")
    put("flush-failed", "POST", "/flush_cache", "never", 400, None, "Flush cache failed.\n")
    # entrypoints/http_server.py:1723.
    put("abort", "POST", "/abort_request", {"abort_all": False}, 200, None, "")


TOKENS = [331, 318, 23, 7, 99, 160, 5, 301, 12, 44, 201, 388]
doors()
draw("draw-length", TOKENS, finish.FINISH_LENGTH(12), {})
draw("draw-end", TOKENS[:6], finish.FINISH_MATCHED_TOKEN(160), {"stop_token_ids": [2, 160]})
draw("draw-stop", TOKENS[:2], finish.FINISH_MATCHED_STR("uys"), {"stop": ["uys", "never"]})
draw("draw-sampled", TOKENS, finish.FINISH_LENGTH(12),
     {"temperature": 0.7, "top_p": 0.9, "sampling_seed": -3})
draw("draw-least", TOKENS, finish.FINISH_LENGTH(12),
     {"min_p": 0.05, "top_k": 40, "sampling_seed": 5})
draw("draw-greedy", TOKENS, finish.FINISH_LENGTH(12), {"temperature": 0.0})
draw("draw-endless", TOKENS, finish.FINISH_LENGTH(12),
     {"stop_token_ids": [], "ignore_eos": True, "sampling_seed": 21})
GIVEN = [7, 160, 23, 310, 2, 2, 55, 23, 310, 99, 301, 12]
score("score-given", GIVEN, [0, 2, 3, 7], 0)
score("score-top", GIVEN, [1, 4, 7], 3)
score("score-nested", GIVEN, [1, 4, 7], 3, nested=True)
score("score-clipped", [7, 415, 414, 3], [0, 1, 2], 0)
score("tiny", [0, 0], [0], 0)
