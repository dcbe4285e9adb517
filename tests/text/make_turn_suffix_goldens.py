# Writes tests/text/goldens/turn_suffixes.json and goldens/turns/, a tokenizer with the tokens of
# all families: what stands between a model's turn and its next one, in every chat template that TRL
# ships, by TRL's own _get_tool_suffix_ids.
#   python tests/text/make_turn_suffix_goldens.py
# (needs transformers 5 and TRL 1.16; no model is downloaded)
#
# TRL's function is taken out of its trainer's file. Where it refuses a template, because that does
# not keep prefixes, TRL takes the training variant instead, and so does this script: `by` names it.
# Answers of users, which TRL has not, are cut out of the rendered conversation by counting the
# tokens that end turns.
#
# Templates are in goldens/training.json, or have a hash here alone (make_training_goldens.py says
# which and why).
import ast
import hashlib
import json
import os
import re
import types

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers
import trl
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import get_training_chat_template, supports_tool_calling

HERE = os.path.dirname(os.path.abspath(__file__))
TRL = os.path.dirname(trl.__file__)
TEMPLATES = os.path.join(TRL, "chat_templates")
TOKENIZER = os.path.join(HERE, "goldens", "turns")

# The token that ends a turn with calls, by the beginning of a template's name; the first counts.
ENDS = {
    "qwen": "<|im_end|>",
    "lfm2": "<|im_end|>",
    "nemotron_3": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "deepseekv3": "<｜end▁of▁sentence｜>",
    "gptoss": "<|call|>",
    "gemma4_v2": "<turn|>",
    "muse_glimmer": "<|eot|>",
}
# Those that end turns of text, where they are others.
TEXT_ENDS = {"gptoss": "<|end|>"}


def result(content, name="weather"):
    return dict(role="tool", name=name, content=content)


def user(content):
    return dict(role="user", content=content)


RESULTS = [
    [result("rain")],
    [result("rain"), result("sun")],
    [result("line\n\n é 🙂 <b>\t\"x\""), result("", "add"), result('{"error": "no such city"}')],
]
USERS = [[user("and you?")], [user(" a \n"), user("b")]]


def suffix_method():
    """TRL's method, and nothing else of its trainer."""
    with open(os.path.join(TRL, "trainer", "grpo_trainer.py"), encoding="utf-8") as f:
        source = f.read()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == "_get_tool_suffix_ids":
            space = {}
            exec(compile(ast.Module([node], []), "grpo_trainer.py", "exec"), space)
            return space[node.name], hashlib.sha256(ast.unparse(node).encode()).hexdigest()
    raise ValueError("TRL has no _get_tool_suffix_ids any more")


def read(name):
    with open(os.path.join(TEMPLATES, name + ".jinja"), encoding="utf-8") as f:
        return f.read()


def make_tokenizer(sources):
    """The small byte-level one of the other goldens, and every token that a template writes."""
    found = set()
    for source in sources:
        found.update(re.findall(r"<[|｜][^<>\s{}'\"]{1,40}[|｜]>", source))
        found.update(re.findall(r"<\|?[a-z_]{1,30}\|?>", source))
    words = {"<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>"}
    special = sorted(
        token for token in found if token not in words and ("|" in token or "｜" in token)
    )
    tokenizer = Tokenizer.from_file(os.path.join(HERE, "goldens", "gpt2", "tokenizer.json"))
    tokenizer.add_tokens(sorted(words))
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    fast.save_pretrained(TOKENIZER)
    return PreTrainedTokenizerFast.from_pretrained(TOKENIZER)


def end_of(name, ends):
    for begin, end in ends.items():
        if name.startswith(begin):
            return end
    return None


def by_trl(method, tok, template, end, messages):
    tok.eos_token = end
    trainer = types.SimpleNamespace(
        _is_vlm=False,
        processing_class=tok,
        _tokenizer=tok,
        chat_template=template,
        chat_template_kwargs={},
    )
    return method(trainer, messages)


def by_counting(tok, template, end, messages):
    conversation = [user("dummy"), dict(role="assistant", content="text"), *messages]
    ids = tok.apply_chat_template(
        conversation, chat_template=template, add_generation_prompt=True, return_dict=False
    )
    places = [i for i, token in enumerate(ids) if token == tok.convert_tokens_to_ids(end)]
    return ids[places[-1 - len(messages)] + 1 :]


def by_sentinel(tok, template, end, messages):
    """As TurnSuffix does it, so that a difference is seen before anything is compiled."""
    said = "retortsentinelofaturn"
    turn = dict(role="assistant", content=said)
    if messages[0]["role"] == "tool":
        function = dict(name=messages[0]["name"], arguments={"value": said})
        turn = dict(role="assistant", content="", tool_calls=[])
        turn["tool_calls"].append(dict(id="call00000", type="function", function=function))

    def render():
        return tok.apply_chat_template(
            [user("dummy"), turn, *messages],
            chat_template=template,
            add_generation_prompt=True,
            tokenize=False,
        )

    try:
        text = render()
    except TypeError:
        function["arguments"] = json.dumps(function["arguments"])
        text = render()
    behind = text[text.index(end, text.index(said)) :]
    ids = tok(behind, add_special_tokens=False)["input_ids"]
    assert ids[0] == tok.convert_tokens_to_ids(end), (end, ids[0])
    return ids[1:]


def suffixes(method, tok, name, template):
    """{end, by, results, users} of a template that joins turns; None of one that does not."""
    end = end_of(name, ENDS)
    tok.chat_template = template
    if end is None or not supports_tool_calling(tok):
        return None
    by = name
    try:
        results = [by_trl(method, tok, template, end, each) for each in RESULTS]
    except (ValueError, TypeError):
        training = get_training_chat_template(tok)
        by = name + "_training"
        assert training == read(by), name
        results = [by_trl(method, tok, training, end, each) for each in RESULTS]
    text_end = end_of(name, TEXT_ENDS) or end
    users = []
    for each in USERS:
        try:
            users.append(by_counting(tok, template, text_end, each))
        except Exception:  # noqa: BLE001 - the template refuses it
            users.append(None)

    for expected, given, last in [
        *zip(results, RESULTS, [end] * 9),
        *zip(users, USERS, [text_end] * 9),
    ]:
        if expected is not None:
            found = by_sentinel(tok, template, last, given)
            if found != expected:
                print("!", name, repr(tok.decode(found)), repr(tok.decode(expected)))
    return dict(end=end, by=by, results=results, users=users)


def main():
    method, digest = suffix_method()
    files = sorted(name for name in os.listdir(TEMPLATES) if name.endswith(".jinja"))
    names = [name[: -len(".jinja")] for name in files]
    tok = make_tokenizer([read(name) for name in names])
    templates = []
    for name in names:
        source = read(name)
        found = None
        why = ""
        try:
            found = suffixes(method, tok, name, source)
        except Exception as error:  # noqa: BLE001 - a refusal is the golden
            why = f"{type(error).__name__}: {error}"[:200]
        print(name, found["end"] + " by " + found["by"] if found else "refused " + why)
        sha = hashlib.sha256(source.encode()).hexdigest()
        templates.append(dict(name=name, sha256=sha, suffixes=found))

    golden = dict(
        versions=dict(transformers=transformers.__version__, trl=trl.__version__),
        trl_method=digest,
        results=RESULTS,
        users=USERS,
        templates=templates,
    )
    with open(os.path.join(HERE, "goldens", "turn_suffixes.json"), "w", encoding="utf-8") as f:
        json.dump(golden, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
