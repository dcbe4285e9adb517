"""Writes goldens/retort_env.json: what TRL's GRPOTrainer and transformers make of env_cases.py.

    python make_env_goldens.py [SITE]        # transformers and TRL 1.16 are in SITE, or installed

TRL's trainer needs a model and a GPU's libraries; what it does with tools does not. So its pieces
are taken from grpo_trainer.py by name, without importing it, and run with a trainer that is none:
the loop over calls, the dicts of tools, and what reset() adds to a prompt.
"""
import ast
import asyncio
import hashlib
import inspect
import json
import pathlib
import sys
import threading
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = sys.argv[1:2]
sys.path.insert(0, str(HERE.parent))

import transformers  # noqa: E402
from transformers.utils import get_json_schema  # noqa: E402

from tests import env_cases  # noqa: E402


def find_source():
    for folder in sys.path:
        path = pathlib.Path(folder) / "trl/trainer/grpo_trainer.py"
        if path.is_file():
            return path
    sys.exit("no trl/trainer/grpo_trainer.py: pip install --no-deps trl==1.16.0")


def run_pieces(tree, names):
    """Defines methods of the trainer in `names`, and `begin(self, inputs)` of the statements that
    choose environments, gather their tools and reset them. Returns them by name."""
    trainer = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "GRPOTrainer")
    methods = {n.name: n for n in trainer.body if isinstance(n, ast.FunctionDef)}
    body = methods["_generate_and_score_completions"].body
    texts = [ast.unparse(statement) for statement in body]
    first = next(i for i, text in enumerate(texts) if "x.get('prompt'" in text)
    last = next(i for i, text in enumerate(texts) if "environment.reset(" in text)
    begin = ast.parse("def begin(self, inputs):\n    pass\n    return prompts").body[0]
    begin.body[:1] = body[first : last + 1]
    module = ast.Module([methods["_tool_call_loop"], begin], [])
    exec(compile(ast.fix_missing_locations(module), "grpo_trainer.py", "exec"), names)
    return names


def environment_tools(factory, functions):
    """As its __init__ finds them; it is too long to be run in part."""
    methods = [
        name for name, _ in inspect.getmembers(factory, predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    ]
    return functions + [getattr(factory(), name) for name in methods]


def new_trainer(factory, functions, num_turns):
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    tools = environment_tools(factory, functions)
    config = types.SimpleNamespace(max_position_embeddings=10**6)
    return types.SimpleNamespace(
        tools=tools, _standalone_tools=functions, _multi_environment=False, async_loop=loop,
        environment_factories={None: factory}, _environment_pool={None: []}, environments=None,
        _env_tools={None: tools}, max_tool_calling_iterations=num_turns, use_vllm=False,
        _is_vlm=False, model=types.SimpleNamespace(config=config), max_completion_length=10**5,
        _tokenizer=None, _get_tool_suffix_ids=lambda messages: [7] * len(messages),
        _generate_single_turn=lambda ids, *_, **__: ([[8]] * len(ids), None),
    )


def assistant(calls):
    listed = [{"type": "function", "function": dict(call)} for call in calls]
    return {"role": "assistant", "content": "", **({"tool_calls": listed} if calls else {})}


def play(tree, row, turns, factory, functions):
    """One episode: what it says at first, the answers of each turn, failures, reward."""
    answers = [assistant(calls) for calls in turns] + [assistant([])]
    names = {"asyncio": asyncio, "inspect": inspect}
    left = iter(answers[1:])
    names["parse_response"] = lambda *_, **__: next(left)
    pieces = run_pieces(tree, names)

    # A prompt of one message, to which reset() may add.
    trainer = new_trainer(factory, functions, len(turns))
    prompt = [{"role": "user", "content": "Go."}]
    prompts = pieces["begin"](trainer, [{"prompt": prompt, **row}])
    said = prompts[0][-1]["content"][len("Go."):]
    _, completions, *_, calls, failures, _ = pieces["_tool_call_loop"](
        trainer, prompts, [[1]], [[2]], [[answers[0]]], None, None, None)
    messages = [message for message in completions[0] if message["role"] == "tool"]
    reward = None
    if hasattr(trainer.environments[0], "get_reward"):
        reward = trainer.environments[0].get_reward()
        if inspect.isawaitable(reward):
            reward = asyncio.run(reward)
    return {"said": said, "messages": messages, "calls": calls, "failures": failures,
            "reward": reward}


def refusal(function):
    try:
        get_json_schema(function)
    except Exception as error:
        return type(error).__name__
    raise AssertionError(f"{function.__name__} has a schema")


def main():
    source = find_source()
    text = source.read_text()
    tree = ast.parse(text)
    tools = environment_tools(env_cases.Counter, [env_cases.upper])
    golden = {
        "versions": {"trl": "1.16.0", "transformers": transformers.__version__},
        "grpo_trainer_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "schemas": [get_json_schema(function) for function in env_cases.DESCRIBED],
        "refused": [refusal(function) for function in env_cases.REFUSED],
        "tools": [get_json_schema(tool) for tool in tools],
    }
    for name in ("Counter", "Judged"):
        golden[name] = [
            play(tree, row, turns, getattr(env_cases, name), [env_cases.upper])
            for row, turns in env_cases.DIALOGUES
        ]
    path = HERE / "goldens/retort_env.json"
    path.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
    print(path)


main()
