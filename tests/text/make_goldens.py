# Writes tests/text/goldens/: small tokenizers of every kind and what transformers makes of texts
# and chats with them.
#   python tests/text/make_goldens.py
# (needs transformers 5 and tokenizers; no model is downloaded)
import json
import os
import random
import shutil

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from chat_goldens import CONVERSATIONS, REFUSED, TEMPLATES
from small_tokenizers import KINDS

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "goldens")

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n \n",
    "\t\tx",
    "Hello",
    " Hello",
    "Hello ",
    "Hello world",
    "hello, world!  It's 3:45pm.",
    "The teacher's logits aren't  calibrated ; they 're   noisy .",
    "a\r\nb\rc\n",
    "   leading and trailing   ",
    "def f(x):\n    if x:\n        return x\n\n\n    return None\n",
    "1234567890 12 3.14159 1,000,000",
    "naïve café e\u0301 \u00e9 Å \u212b ﬁ",
    "Привет, мир! Как дела?",
    "你好，世界！学习",
    "日本語テキスト と かな",
    "한국어",
    "🙂",
    "a🙂b👩‍👩‍👧‍👦c🏳️‍🌈",
    "👍🏽 ok",
    "\u200b\u00a0x\u3000y\u2028z",
    "\x00\x01\x7f",
    "ab\ufffdcd",
    "\ue000\U0010fffd",
    "don't DON'T we'll I'VE it's",
    "!!!???...---===",
    "https://example.com/a?b=c&d=%20#e",
    '{"a": [1, 2.5, null]}',
    "x" * 70,
    "the " * 12,
    "عربي نص مع שלום",
    "ｆｕｌｌｗｉｄｔｈ １２３",
    "İstanbul ıİ ß ẞ",
    "zero\u200dwidth",
    "<|endoftext|>",
    "a<|endoftext|>b",
    "<|im_start|>user\nhi<|im_end|>\n",
    " <|im_end|> x",
    "<s>[INST] hi [/INST] yo</s>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "[CLS] a [SEP] [MASK] .",
    "<|im_end",
    "<unk>",
    "<pad>x<pad>",
    "<think>\nwell\n</think>\n\nyes",
    "▁metaspace▁inside ▁ x",
    "<0x41>",
    "mixed \U0001f600 é 漢 end.",
]


def byte_offsets(text, encoded):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [[at[a], at[b]] for a, b in encoded["offset_mapping"]]


def tokenizer_cases(tok):
    skipping = lambda ids: tok.decode(ids, skip_special_tokens=True)
    encoded = []
    for text in TEXTS:
        plain = tok(text, add_special_tokens=False, return_offsets_mapping=True)
        full = tok(text, return_offsets_mapping=True)
        encoded.append(
            dict(
                text=text,
                plain=plain["input_ids"],
                plain_offsets=byte_offsets(text, plain),
                full=full["input_ids"],
                full_offsets=byte_offsets(text, full),
                decoded=tok.decode(full["input_ids"]),
                skipped=skipping(full["input_ids"]),
            )
        )

    # Ids that no text gives, some of them beyond the vocabulary.
    rng = random.Random(5)
    decoded = []
    for length in (1, 1, 2, 3, 5, 8, 13, 21, 34):
        ids = [rng.randrange(len(tok) + 4) for _ in range(length)]
        decoded.append(dict(ids=ids, decoded=tok.decode(ids), skipped=skipping(ids)))

    return dict(
        texts=encoded,
        ids=decoded,
        tokens=[tok.convert_ids_to_tokens(i) for i in range(len(tok))],
        special=sorted(tok.all_special_ids),
        eos=tok.eos_token_id,
        bos=tok.bos_token_id,
        pad=tok.pad_token_id,
    )


def render(tok, conversation, **options):
    rendered, _ = render_jinja_template(
        conversations=[conversation],
        chat_template=tok.chat_template,
        **tok.special_tokens_map,
        **options,
    )
    return rendered[0]


def prefix_mask(tok, conversation, ids, text):
    """Which tokens the assistant said, from the text before and after each of its messages."""
    mask = [0] * len(ids)
    offsets = tok(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    for i, message in enumerate(conversation):
        if message["role"] != "assistant":
            continue
        try:
            before = render(tok, conversation[:i], add_generation_prompt=True)  # may be empty
            after = render(tok, conversation[: i + 1])
        except Exception:  # noqa: BLE001 - the template refuses this prefix
            return None

        # A token that reaches into the message counts.
        if not (text.startswith(after) and after.startswith(before)):
            return None
        for t, (a, b) in enumerate(offsets):
            if b > len(before) and a < len(after):
                mask[t] = 1
    return mask


def chat_cases(tok, marked):
    cases = []
    for conversation in CONVERSATIONS:
        case = dict(messages=conversation)
        try:
            case["text"] = tok.apply_chat_template(conversation, tokenize=False)
            options = dict(tokenize=False, add_generation_prompt=True)
            case["prompt"] = tok.apply_chat_template(conversation, **options)
        except Exception as error:  # noqa: BLE001 - the template's own refusal is the golden
            cases.append(dict(messages=conversation, error=str(error)))
            continue

        # With marks transformers says what the assistant said; without, the prefixes do.
        ids = tok(case["text"], add_special_tokens=False)["input_ids"]
        if marked:
            options = dict(return_dict=True, return_assistant_tokens_mask=True)
            out = tok.apply_chat_template(conversation, **options)
            assert out["input_ids"] == ids
            case["mask"] = out["assistant_masks"]
        else:
            case["mask"] = prefix_mask(tok, conversation, ids, case["text"])
        cases.append(dict(case, ids=ids))
    return cases


def write(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def main():
    shutil.rmtree(OUT, ignore_errors=True)

    # A folder for each kind, with what transformers makes of the texts.
    loaded = {}
    for make in KINDS:
        tok, config, special_map = make()
        folder = os.path.join(OUT, make.__name__)
        os.makedirs(folder)
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
            f.write(tok.to_str(pretty=False) + "\n")
        config = dict(config, tokenizer_class="PreTrainedTokenizerFast")
        write(os.path.join(folder, "tokenizer_config.json"), config)
        if special_map:
            write(os.path.join(folder, "special_tokens_map.json"), special_map)
        loaded[make.__name__] = AutoTokenizer.from_pretrained(folder)
        write(os.path.join(folder, "cases.json"), tokenizer_cases(loaded[make.__name__]))

    # One file for the conversations, by template.
    chats = []
    for name, (kind, source) in TEMPLATES.items():
        tok = loaded[kind]
        tok.chat_template = source
        marked = "generation %}" in source
        chat = dict(name=name, tokenizer=kind, template=source)
        chat |= dict(bos=tok.bos_token or "", eos=tok.eos_token or "", marked=marked)
        chats.append(dict(chat, cases=chat_cases(tok, marked)))
    write(os.path.join(OUT, "chats.json"), dict(chats=chats, refused=REFUSED))


if __name__ == "__main__":
    main()
