"""Small tokenizers of every kind, trained on a few sentences; make_goldens.py writes them.

Each function of KINDS returns a tokenizer and what goes into tokenizer_config.json and into
special_tokens_map.json (None: there is no such file).
"""

import json

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The teacher sends logits and the student learns from them, step by step.",
    "A student model is smaller than its teacher; it's trained on 12345 tokens, isn't it?",
    "Distillation compresses knowledge: low loss, high speed, and few parameters.",
    "def step(x):\n    return x + 1  # comment\n\n\nclass Model:\n    pass\n",
    "Größe, naïve café, Zürich, Übung macht den Meister. C'est déjà l'été.",
    "Быстрая лиса прыгает через ленивую собаку. Привет, мир!",
    "学生从老师那里学习。你好，世界！",
    "user assistant system You are a helpful assistant.",
] * 4

GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def special(*names, **flags):
    return [AddedToken(n, special=True, normalized=False, **flags) for n in names]


def byte_bpe(size, pre, specials, normalizer=None, **model):
    tok = Tokenizer(models.BPE(**model))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = dict(show_progress=False, initial_alphabet=alphabet)
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, **options))
    tok.add_special_tokens(special(*specials))
    return tok


def gpt2():
    end = "<|endoftext|>"
    tok = byte_bpe(420, pre_tokenizers.ByteLevel(add_prefix_space=False), [end])
    return tok, dict(bos_token=end, eos_token=end, unk_token=end), None


def split_bytes(digits):
    split = pre_tokenizers.Split(Regex(GPT4_SPLIT % digits), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


def qwen():
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tok = byte_bpe(460, split_bytes(""), names, normalizers.NFC())
    tok.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>")])

    # Every token is listed with its flags, as newer folders do.
    flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    decoder = {}
    for i, token in sorted(tok.get_added_tokens_decoder().items()):
        decoder[str(i)] = {key: getattr(token, key) for key in flags}
    config = dict(
        added_tokens_decoder=decoder,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token=None,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    return tok, config, None


def llama3():
    names = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    tok = byte_bpe(440, split_bytes("{1,3}"), names, ignore_merges=True)
    bos = tok.token_to_id("<|begin_of_text|>")
    begin = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", bos)],
    )
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])

    # Lengths in tokenizer.json are ignored, as transformers does for one text.
    tok.enable_truncation(6)
    tok.enable_padding(pad_id=0, pad_token="!", length=8)
    config = dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", model_max_length=64)
    return tok, config, None


def fallback_bpe(size, normalizer, pre, corpus=CORPUS, characters=70):
    """BPE over the most frequent characters with byte fallback, as sentencepiece models are
    converted."""
    # The merges are learnt without bytes, which get the lowest ids after the special tokens.
    base = Tokenizer(models.BPE(unk_token="<unk>"))
    base.normalizer = normalizers.Replace(" ", "▁")
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    options = dict(show_progress=False, limit_alphabet=characters)
    base.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, **options))
    learnt = json.loads(base.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    pieces += [p for p, _ in sorted(learnt["vocab"].items(), key=lambda kv: kv[1])]

    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in learnt["merges"]]
    fallback = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, **fallback))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    sequence = dict(single="<s> $A", pair="<s> $A <s> $B")
    tok.post_processor = processors.TemplateProcessing(**sequence, special_tokens=[("<s>", 1)])
    tok.add_special_tokens(special("<unk>", "<s>", "</s>"))
    return tok


def entry(content):
    return dict(content=content, lstrip=False, normalized=False, rstrip=False, single_word=False)


def llama2():
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tok = fallback_bpe(300, normalizers.Sequence(spaces), None)

    # Old layout: the names in special_tokens_map.json, as objects; <pad> is in neither
    # tokenizer.json nor the vocabulary.
    named = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    special_map = dict({k: entry(v) for k, v in named.items()}, pad_token="<pad>")
    return tok, dict(add_bos_token=True, clean_up_tokenization_spaces=False), special_map


def mistral():
    pre = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tok = fallback_bpe(330, None, pre)
    tok.add_special_tokens(special("[INST]", "[/INST]"))
    return tok, dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>"), dict(eos_token="</s>")


def wordpiece():
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(cleanup=False)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=360, special_tokens=names, show_progress=False)
    tok.train_from_iterator(CORPUS, trainer)
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    config = dict(
        clean_up_tokenization_spaces=True,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        unk_token="[UNK]",
    )
    return tok, config, None


def unigram():
    tok = Tokenizer(models.Unigram())
    one_space = normalizers.Replace(Regex(" {2,}"), " ")
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), one_space])
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    names = dict(unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>"])
    trainer = trainers.UnigramTrainer(vocab_size=320, **names, show_progress=False)
    tok.train_from_iterator(CORPUS, trainer)
    sequence = dict(single="$A </s>", pair="$A </s> $B </s>")
    tok.post_processor = processors.TemplateProcessing(**sequence, special_tokens=[("</s>", 1)])
    named = dict(eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    return tok, dict(named, clean_up_tokenization_spaces=True), None


KINDS = (gpt2, qwen, llama3, llama2, mistral, wordpiece, unigram)
