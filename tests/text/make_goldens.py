# Writes tests/text/goldens/: small tokenizers of every kind and what transformers makes of texts and chats with them.
#   python tests/text/make_goldens.py        (needs transformers 5 and tokenizers; no model is downloaded)
import json
import os
import random
import shutil

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from chat_goldens import CONVERSATIONS, REFUSED, TEMPLATES

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "goldens")

CORPUS = [
    "The teacher sends logits and the student learns from them, step by step.",
    "A student model is smaller than its teacher; it's trained on 12345 tokens, isn't it?",
    "Distillation compresses knowledge: low loss, high speed, and few parameters.",
    "def step(x):\n    return x + 1  # comment\n\n\nclass Model:\n    pass\n",
    "Größe, naïve café, Zürich, Übung macht den Meister. C'est déjà l'été.",
    "Быстрая лиса прыгает через ленивую собаку. Привет, мир!",
    "学生从老师那里学习。你好，世界！", "user assistant system You are a helpful assistant.",
] * 4

TEXTS = [
    "", " ", "  ", "\n", "\n\n \n", "\t\tx", "Hello", " Hello", "Hello ", "Hello world", "hello, world!  It's 3:45pm.",
    "The teacher's logits aren't  calibrated ; they 're   noisy .", "a\r\nb\rc\n", "   leading and trailing   ",
    "def f(x):\n    if x:\n        return x\n\n\n    return None\n", "1234567890 12 3.14159 1,000,000",
    "naïve café e\u0301 \u00e9 Å \u212b ﬁ", "Привет, мир! Как дела?", "你好，世界！学习", "日本語テキスト と かな", "한국어",
    "🙂", "a🙂b👩‍👩‍👧‍👦c🏳️‍🌈", "👍🏽 ok", "\u200b\u00a0x\u3000y\u2028z", "\x00\x01\x7f", "ab\ufffdcd", "\ue000\U0010fffd",
    "don't DON'T we'll I'VE it's", "!!!???...---===", "https://example.com/a?b=c&d=%20#e", "{\"a\": [1, 2.5, null]}",
    "x" * 70, "the " * 12, "عربي نص مع שלום", "ｆｕｌｌｗｉｄｔｈ １２３", "İstanbul ıİ ß ẞ", "zero\u200dwidth",
    "<|endoftext|>", "a<|endoftext|>b", "<|im_start|>user\nhi<|im_end|>\n", " <|im_end|> x", "<s>[INST] hi [/INST] yo</s>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "[CLS] a [SEP] [MASK] .", "<|im_end", "<unk>",
    "<pad>x<pad>", "<think>\nwell\n</think>\n\nyes", "▁metaspace▁inside ▁ x", "<0x41>", "mixed \U0001f600 é 漢 end.",
]

GPT4_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(*names, **flags):
    return [AddedToken(n, special=True, normalized=False, **flags) for n in names]


def byte_bpe(size, pre, specials, normalizer=None, **model):
    tok = Tokenizer(models.BPE(**model))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet))
    tok.add_special_tokens(special(*specials))
    return tok


def gpt2():
    tok = byte_bpe(420, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    return tok, dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>"), None


def split_bytes(digits):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(GPT4_SPLIT % digits), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def qwen():
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tok = byte_bpe(460, split_bytes(""), names, normalizers.NFC())
    tok.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    decoder = {str(i): {k: getattr(t, k) for k in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")}
               for i, t in sorted(tok.get_added_tokens_decoder().items())}
    return tok, dict(added_tokens_decoder=decoder, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token=None,
                     additional_special_tokens=["<|im_start|>", "<|im_end|>"]), None


def llama3():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tok = byte_bpe(440, split_bytes("{1,3}"), names, ignore_merges=True)
    bos = tok.token_to_id("<|begin_of_text|>")
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    # Lengths in tokenizer.json are ignored, as transformers does for one text.
    tok.enable_truncation(6)
    tok.enable_padding(pad_id=0, pad_token="!", length=8)
    return tok, dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", model_max_length=64), None


def fallback_bpe(size, normalizer, pre):
    """BPE over characters with byte fallback, as sentencepiece models are converted."""
    base = Tokenizer(models.BPE(unk_token="<unk>"))
    base.normalizer = normalizers.Replace(" ", "▁")
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    base.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=70))
    learnt = json.loads(base.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    pieces += [p for p, _ in sorted(learnt["vocab"].items(), key=lambda kv: kv[1])]
    tok = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[tuple(m) for m in learnt["merges"]],
                               unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tok.add_special_tokens(special("<unk>", "<s>", "</s>"))
    return tok


def entry(content):
    return dict(content=content, lstrip=False, normalized=False, rstrip=False, single_word=False)


def llama2():
    tok = fallback_bpe(300, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None)
    named = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    # Old layout: the names in special_tokens_map.json, as objects; <pad> is in neither tokenizer.json nor the vocabulary.
    return tok, dict(add_bos_token=True, clean_up_tokenization_spaces=False), dict(
        {k: entry(v) for k, v in named.items()}, pad_token="<pad>")


def mistral():
    tok = fallback_bpe(330, None, pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False))
    tok.add_special_tokens(special("[INST]", "[/INST]"))
    return tok, dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>"), dict(eos_token="</s>")


def wordpiece():
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(cleanup=False)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tok.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=360, special_tokens=names, show_progress=False))
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tok, dict(clean_up_tokenization_spaces=True, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
                     mask_token="[MASK]", unk_token="[UNK]"), None


def unigram():
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    tok.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=320, unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False))
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return tok, dict(eos_token="</s>", pad_token="<pad>", unk_token="<unk>", clean_up_tokenization_spaces=True), None


def byte_offsets(text, encoded):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [[at[a], at[b]] for a, b in encoded["offset_mapping"]]


def tokenizer_cases(tok):
    rng = random.Random(5)
    encoded = []
    for text in TEXTS:
        plain = tok(text, add_special_tokens=False, return_offsets_mapping=True)
        full = tok(text, return_offsets_mapping=True)
        encoded.append(dict(text=text, plain=plain["input_ids"], plain_offsets=byte_offsets(text, plain),
                            full=full["input_ids"], full_offsets=byte_offsets(text, full),
                            decoded=tok.decode(full["input_ids"]),
                            skipped=tok.decode(full["input_ids"], skip_special_tokens=True)))
    decoded = []
    for length in (1, 1, 2, 3, 5, 8, 13, 21, 34):
        ids = [rng.randrange(len(tok) + 4) for _ in range(length)]  # some ids beyond the vocabulary
        decoded.append(dict(ids=ids, decoded=tok.decode(ids), skipped=tok.decode(ids, skip_special_tokens=True)))
    return dict(texts=encoded, ids=decoded, tokens=[tok.convert_ids_to_tokens(i) for i in range(len(tok))],
                special=sorted(tok.all_special_ids), eos=tok.eos_token_id, bos=tok.bos_token_id, pad=tok.pad_token_id)


def render(tok, conversation, **options):
    rendered, _ = render_jinja_template(conversations=[conversation], chat_template=tok.chat_template,
                                        **tok.special_tokens_map, **options)
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
            after = render(tok, conversation[:i + 1])
        except Exception:  # noqa: BLE001 - the template refuses this prefix
            return None
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
            case["prompt"] = tok.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # noqa: BLE001 - the template's own refusal is the golden
            cases.append(dict(messages=conversation, error=str(error)))
            continue
        ids = tok(case["text"], add_special_tokens=False)["input_ids"]
        if marked:
            out = tok.apply_chat_template(conversation, return_dict=True, return_assistant_tokens_mask=True)
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
    loaded = {}
    for make in (gpt2, qwen, llama3, llama2, mistral, wordpiece, unigram):
        tok, config, special_map = make()
        folder = os.path.join(OUT, make.__name__)
        os.makedirs(folder)
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
            f.write(tok.to_str(pretty=False) + "\n")
        write(os.path.join(folder, "tokenizer_config.json"), dict(config, tokenizer_class="PreTrainedTokenizerFast"))
        if special_map:
            write(os.path.join(folder, "special_tokens_map.json"), special_map)
        loaded[make.__name__] = AutoTokenizer.from_pretrained(folder)
        write(os.path.join(folder, "cases.json"), tokenizer_cases(loaded[make.__name__]))
    chats = []
    for name, (kind, source) in TEMPLATES.items():
        tok = loaded[kind]
        tok.chat_template = source
        chats.append(dict(name=name, tokenizer=kind, template=source, bos=tok.bos_token or "", eos=tok.eos_token or "",
                          marked="generation %}" in source, cases=chat_cases(tok, "generation %}" in source)))
    write(os.path.join(OUT, "chats.json"), dict(chats=chats, refused=REFUSED))


if __name__ == "__main__":
    main()
