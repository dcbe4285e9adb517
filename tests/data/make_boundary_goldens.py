"""Where prompts end in rows of prompt and completion: tests/data/boundary_goldens.jsonl.

Run:  python tests/data/make_boundary_goldens.py
(TRL 1.16, transformers 5.23; uses the small tokenizers of tests/text/goldens)

Each line is a tokenizer, a chat template, a row, the ids of prompt + completion that TRL's SFT, DPO
and KTO trainers give it, and how many of them are the prompt's (trl.data_utils.common_prefix_length
of the prompt's ids and of all). Strings get EOS as their add_eos gives it.
"""

import json
import os
import pathlib

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import AutoTokenizer
from trl.data_utils import common_prefix_length

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parent / "text" / "goldens"

# Roles that are plain text; the last piece of a generation prompt may melt into the answer.
PLAIN = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
INSTRUCT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
SPACED = PLAIN.replace("<|assistant|>\n{% endif %}", "<|assistant|>\n{{ ' ' }}{% endif %}")
# A prompt alone opens a thought that a whole conversation does not have.
THINKS = PLAIN.replace("<|assistant|>\n{% endif %}", "<|assistant|>\n<think>\n{% endif %}")
TEMPLATES = {"plain": PLAIN, "instruct": INSTRUCT, "spaced": SPACED, "thinks": THINKS}

STRINGS = [
    {"prompt": "The answer is", "completion": " 12"},
    {"prompt": "The answer is (", "completion": "12)"},
    {"prompt": "The answer is ", "completion": "12"},
    {"prompt": "The student lea", "completion": "rns from the teacher."},
    {"prompt": "Please write:\n", "completion": "The student"},
    {"prompt": "What is 2 + 2?", "completion": ""},
    {"prompt": "", "completion": "The student"},
    {"prompt": "Größe: naïve café", "completion": " Übung macht den Meister.EOS"},
]


def conversation(*said):
    roles = ["user", "assistant"] * len(said)
    return [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]


MESSAGES = [
    conversation("What is 2 + 2?", "It is 4."),
    conversation("Hi", "Yes?", "2 + 2?", "Tom has 4."),
]


def encode(tokenizer, text):
    return tokenizer(text)["input_ids"]


def render(tokenizer, template, messages, **options):
    source = TEMPLATES[template]
    return tokenizer.apply_chat_template(messages, chat_template=source, **options)["input_ids"]


def golden(tokenizer, name, template, row):
    eos = tokenizer.eos_token
    row = json.loads(json.dumps(row).replace("EOS", eos))
    prompt, completion = row["prompt"], row["completion"]
    if template:
        alone = render(tokenizer, template, prompt, add_generation_prompt=True)
        whole = render(tokenizer, template, prompt + completion)
    else:
        text = prompt + completion + ("" if completion.endswith(eos) else eos)
        alone, whole = encode(tokenizer, prompt), encode(tokenizer, text)
    common = common_prefix_length(alone, whole)
    return {
        "tokenizer": name,
        "template": TEMPLATES.get(template, ""),
        "row": row,
        "ids": whole,
        "prompt_tokens": common,
        "prompt_differs": common < len(alone),
    }


def main():
    lines = []
    for name in ("llama2", "mistral", "llama3", "qwen"):
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZERS / name)
        rows = [("", row) for row in STRINGS]
        if name == "qwen":  # names no BOS, which these templates write
            rows = [("", row) for row in STRINGS if row["prompt"]]
        for template in TEMPLATES if tokenizer.bos_token else ():
            rows += [
                (template, {"prompt": chat[:-1], "completion": chat[-1:]}) for chat in MESSAGES
            ]
        lines += [golden(tokenizer, name, template, row) for template, row in rows]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (HERE / "boundary_goldens.jsonl").write_text(text)
    differ = sum(line["prompt_differs"] for line in lines)
    print(len(lines), "rows;", differ, "whose prompt differs")


if __name__ == "__main__":
    main()
