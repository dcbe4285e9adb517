"""What TRL's DPOTrainer makes of preference rows: tests/data/preference_goldens.jsonl.

Run:  python tests/data/make_goldens.py
(TRL 1.16, transformers 5.23; uses the small tokenizers of tests/text/goldens)

Each line is a tokenizer, a row and the ids that TRL gives it. No token spans the boundary of prompt
and completion here: that is make_boundary_goldens.py.
"""

import copy
import json
import os
import pathlib
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, DPOTrainer

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parent / "text" / "goldens"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
# One list for each set of columns.
GROUPS = [
    [
        {"prompt": "What is 2 + 2?", "chosen": " It is 4.", "rejected": " It is 5, isn't it?"},
        {
            "prompt": "Größe: naïve café",
            "chosen": " Übung macht den Meister.EOS",
            "rejected": " no",
        },
        {"prompt": "The student", "chosen": " learns", "rejected": " learns"},
    ],
    [
        {"chosen": "User: hi\nAssistant: Hello there", "rejected": "User: hi\nAssistant: Go away"},
        {"chosen": "The answer is yes", "rejected": "The answer is no"},
    ],
    [
        {
            "prompt": [user("What is 2 + 2?")],
            "chosen": [assistant("4")],
            "rejected": [assistant("5, isn't it?")],
        },
        {
            "prompt": [
                {"role": "system", "content": "Be brief."},
                user("Hi"),
                assistant("Yes?"),
                user("2 + 2?"),
            ],
            "chosen": [assistant("4")],
            "rejected": [assistant("Let me think.\n\n4")],
        },
    ],
    [
        {
            "chosen": [user("Hi"), assistant("Hello.")],
            "rejected": [user("Hi"), assistant("Go away.")],
        },
        {
            "chosen": [user("Hi"), assistant("Hello.")],
            "rejected": [user("Hi"), assistant("Hello.")],
        },
        {
            "chosen": [user("a"), assistant("b"), user("c"), assistant("learns from them")],
            "rejected": [user("a"), assistant("b"), user("c"), assistant("")],
        },
    ],
]


def ids_of(rows, tokenizer, model, folder):
    config = DPOConfig(output_dir=folder, report_to=[], use_cpu=True, bf16=False, max_length=None)
    data = Dataset.from_list(rows)
    trainer = DPOTrainer(
        model=model,
        ref_model=copy.deepcopy(model),
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
    )
    return list(trainer.train_dataset)


def main():
    lines = []
    for name in ("qwen", "llama3"):  # without and with BOS
        chat = dict(chat_template=TEMPLATE, model_max_length=10000)
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZERS / name, **chat)
        tokenizer.pad_token = tokenizer.eos_token
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
        model = LlamaForCausalLM(config)

        for group in GROUPS:
            rows = json.loads(json.dumps(group).replace("EOS", tokenizer.eos_token))
            with tempfile.TemporaryDirectory() as folder:
                for row, ids in zip(rows, ids_of(rows, tokenizer, model, folder), strict=True):
                    expected = {key: list(ids[key]) for key in IDS}
                    lines.append(json.dumps({"tokenizer": name, "row": row, **expected}))
    (HERE / "preference_goldens.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
