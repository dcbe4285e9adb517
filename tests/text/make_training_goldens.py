# Writes tests/text/goldens/training.json: what transformers renders and masks with the training
# templates of TRL, for the published templates that they stand for; and with marked templates of
# this script, for the same ones without marks. Every published template that TRL ships is in it.
#   python tests/text/make_training_goldens.py
# (needs transformers 5 and TRL 1.16; no model is downloaded)
#
# Published templates of language models are in the file as TRL ships them (Apache 2.0), because our
# variants are edits of them. Of TRL's others (with pictures, and of families that retort has not)
# it has names and hashes: the test reads their text in the folder that RETORT_TRL_TEMPLATES
# names. Of renderings it has hashes and spans.
import datetime
import hashlib
import json
import os

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers.utils.chat_template_utils as chat_utils
import trl
from transformers import AutoTokenizer
from trl.chat_template_utils import get_training_chat_template

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = os.path.join(os.path.dirname(trl.__file__), "chat_templates")
DAY = "2024-02-29"

KNOWN = """qwen3 qwen3_5_nothink qwen3_5_think qwen3_6 qwen3_8 qwen3_instruct_2507 qwen3_vl qwen2_5
phi3 phi3_5 deepseek_r1_distill deepseekv3 gptoss llama3 gemma gemma3 glm4moe cohere cohere2 lfm2
lfm2_v2 muse_glimmer nemotron_3_nano nemotron_3_super nemotron_3_ultra
nemotron_3_5_lightning""".split()

# Of families that TRL has no training template for: an answer is what rendering up to it adds.
PLAIN = ["llama3_1", "llama3_2"]

# All others that TRL ships: what is rendered is compared, and masks of those with marks.
OTHERS = """diffusion_gemma gemma4 gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5 idefics3 lfm2_2_5
lfm2_2_5_v2 lfm2_2_5_vl llava_next qwen2_5_vl smolvlm""".split()

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name"}},
            "required": ["city"],
        },
    },
}


def user(content):
    return dict(role="user", content=content)


def system(content):
    return dict(role="system", content=content)


def tool(content):
    return dict(role="tool", name="weather", content=content)


def said(content, thought=None, calls=None):
    message = dict(role="assistant", content=content)
    if thought:
        message["reasoning_content"] = message["thinking"] = thought
    if calls:
        message["tool_calls"] = [
            {"id": f"c{i}", "type": "function", "function": {"name": "weather", "arguments": each}}
            for i, each in enumerate(calls)
        ]
    return message


def parts(*texts):
    return [dict(type="text", text=text) for text in texts]


THOUGHT = "<think>\nr\n</think>\n\n"
PARIS = [{"city": "Paris", "days": [1]}]
CHATS = [
    [user("Hi")],
    [user("Hi"), said("Yo")],
    [system("Terse."), user(" a "), said(" b "), user("c"), said("d\n")],
    [user("q"), said("x", "why"), user("r"), said("y", "so")],
    [user("q"), said(THOUGHT + "z"), user("p"), said(THOUGHT + "k")],
    [user("q"), said("", None, PARIS), tool("rain"), said("It rains.")],
    [user("q"), said("", None, PARIS), tool("rain"), said("Rain.", "ok"), user("t"), said("b")],
    [system("S"), user("q"), said("I look", "hm", PARIS), tool("1"), said("R"), user("n")],
    [user(parts("one ", "two")), said(parts("three ", "four"))],
    [user("q"), said(None, None, PARIS + [{"city": "Rome"}]), tool("rain"), tool("sun")],
    [user("a"), said("é 🙂"), system("mid"), user("c"), said("")],
    [user("a"), said("b"), said("c"), user("d"), said("e")],
    [said("x"), user("y"), said("z")],
]

# A thought of the last answer alone, as Qwen3 has it; a thought that the prompt for an answer
# opens, as R1 has it; an end of the whole text, as Phi-3 has it. [[ and ]] stand for the marks.
OWN = {
    "thinking": """{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}\
{%- endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' -%}
[[
{%- if loop.index0 > ns.last and (loop.last or m.thinking) -%}
{{- '<think>\\n' + (m.thinking or '') + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- m.content + '<|im_end|>' -}}
]]
{%- else -%}{{- m.content + '<|im_end|>' -}}{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}""",
    "opened": """{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{- '<|Assistant|>' -}}
[[
{{- m.content.split('</think>')[-1] + '<|eos|>' -}}
]]
{%- else -%}{{- '<|' + m.role + '|>' + m.content -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|><think>\\n' -}}{%- endif -%}""",
    "ended": """{%- for m in messages -%}
{{- '<|' + m.role + '|>\\n' -}}
{%- if m.role == 'assistant' -%}
[[
{{- m.content + '<|end|>' -}}{%- if loop.last and not add_generation_prompt -%}
{{- '\\n<|endoftext|>' -}}{%- endif -%}
]]
{%- if not loop.last or add_generation_prompt -%}{{- '\\n' -}}{%- endif -%}
{%- else -%}{{- m.content + '<|end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}
{%- elif messages[-1].role != 'assistant' -%}{{- '<|endoftext|>' -}}{%- endif -%}""",
}


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(DAY)


def read(name):
    with open(os.path.join(TEMPLATES, name + ".jinja"), encoding="utf-8") as f:
        return f.read()


def short_hash(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def id_hash(encoded):
    return short_hash(" ".join(map(str, encoded["input_ids"])))


def runs(mask):
    """[[first, last), ...] of the places that are set."""
    found = []
    for i, on in enumerate(mask):
        if on and found and found[-1][1] == i:
            found[-1][1] = i + 1
        elif on:
            found.append([i, i + 1])
    return found


def mask_of(length, spans):
    mask = [0] * length
    for begin, end in spans:
        mask[begin:end] = [1] * (end - begin)
    return mask


def render(tok, template, chat, tools, prompt=False):
    # As apply_chat_template does, which hides a field that is None.
    chat = [{key: value for key, value in m.items() if value is not None} for m in chat]
    rendered, spans = chat_utils.render_jinja_template(
        conversations=[chat],
        tools=tools,
        chat_template=template,
        add_generation_prompt=prompt,
        return_assistant_tokens_mask=True,
        **tok.special_tokens_map,
    )
    return rendered[0], spans[0]


def added_spans(tok, template, chat, tools):
    """Of a template without marks, in characters; None where a beginning is not kept."""
    full, _ = render(tok, template, chat, tools)
    spans = []
    for i, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        try:
            before = render(tok, template, chat[:i], tools, True)[0]
            after = render(tok, template, chat[: i + 1], tools)[0]
        except Exception:  # noqa: BLE001 - the template refuses this beginning
            return None
        if not (full.startswith(after) and after.startswith(before)):
            return None
        spans.append([len(before), len(after)])
    return spans


def case(tok, template, chat, tools, marked=True):
    """[hash of the text, runs of bytes, hash of the ids, runs of tokens]; null: a refusal.

    Runs are null where a template without marks renders a beginning otherwise than in the whole.
    """
    try:
        text, spans = render(tok, template, chat, tools)
    except Exception:  # noqa: BLE001 - a refusal is the golden
        return None
    if not marked:
        spans = added_spans(tok, template, chat, tools)
        if spans is None:
            return [short_hash(text), None, id_hash(tok(text, add_special_tokens=False)), None]
    mask = mask_of(len(text), spans)
    in_bytes = runs([on for c, on in zip(text, mask) for _ in c.encode()])

    # As apply_chat_template does it: from the token of the first character to that of the last.
    encoded = tok(text, add_special_tokens=False)
    ids = encoded["input_ids"]
    tokens = [0] * len(ids)
    for begin, end in runs(mask):
        first, last = encoded.char_to_token(begin), encoded.char_to_token(end - 1)
        tokens[first : last + 1] = [1] * (last + 1 - first)
    if marked:
        out = tok.apply_chat_template(
            chat,
            tools=tools,
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert out["input_ids"] == ids
        tokens = out["assistant_masks"]
    return [short_hash(text), in_bytes, id_hash(encoded), runs(tokens)]


def cases(tok, template, tool_sets, marked=True):
    return [[case(tok, template, chat, tools, marked) for tools in tool_sets] for chat in CHATS]


def main():
    chat_utils.datetime = Day
    tok = AutoTokenizer.from_pretrained(os.path.join(HERE, "goldens", "gpt2"))
    tool_sets = [None, [WEATHER]]
    known = []
    for name in KNOWN:
        published = tok.chat_template = read(name)
        training = get_training_chat_template(tok)
        assert training == read(name + "_training")
        known.append(dict(name=name, template=published, cases=cases(tok, training, tool_sets)))

    plain = []
    for name in PLAIN:
        each = cases(tok, read(name), tool_sets, marked=False)
        plain.append(dict(name=name, template=read(name), cases=each))

    others = []
    for name in OTHERS:
        source = read(name)
        marked = "{% generation %}" in source or "{%- generation -%}" in source
        each = cases(tok, source, tool_sets, marked)
        if not marked:
            each = [[c and [c[0], None, c[2], None] for c in row] for row in each]
        text = hashlib.sha256(source.encode()).hexdigest()
        others.append(dict(name=name, sha256=text, cases=each))

    # A later TRL has others: they are to be sorted, too.
    shipped = {name[: -len(".jinja")] for name in os.listdir(TEMPLATES) if name.endswith(".jinja")}
    published = {name for name in shipped if not name.endswith("_training")}
    assert published == {*KNOWN, *PLAIN, *OTHERS}, published ^ {*KNOWN, *PLAIN, *OTHERS}

    own = []
    for name, source in OWN.items():
        bare = source.replace("\n[[", "").replace("\n]]", "")
        marked = source.replace("[[", "{%- generation -%}").replace("]]", "{%- endgeneration -%}")
        each = cases(tok, marked, [None])
        for chat, (one,) in zip(CHATS, each):
            if one:
                assert render(tok, bare, chat, None)[0] == render(tok, marked, chat, None)[0]
        own.append(dict(name=name, template=bare, cases=each))

    golden = dict(
        day=DAY,
        special=tok.eos_token,
        chats=CHATS,
        tools=tool_sets,
        qwen3_training=cases(tok, read("qwen3_training"), tool_sets),
        known=known,
        plain=plain,
        others=others,
        own=own,
    )
    with open(os.path.join(HERE, "goldens", "training.json"), "w", encoding="utf-8") as f:
        json.dump(golden, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
