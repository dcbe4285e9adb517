"""Goldens of which tokens of two tokenizers stand for the same bytes, by TRL 1.16.0's functions.

Run:  python tests/recipes/make_byte_group_goldens.py   (trl 1.16.0, tokenizers 0.23)

Writes into tests/recipes/goldens/byte_groups/

- fine/, coarse/: byte-level BPEs of 420 and 620 tokens that split texts as Llama 3 and as Qwen do
- pieces/: a BPE of sentencepiece's kind (Metaspace, byte fallback)
- cases.json: texts; for each pair of tokenizers and each text the numbers of tokens in each group,
  the student's and the teacher's in turn; for the byte-level pair the ids that TRL takes for one
  token, those of the student beside those of the teacher

The byte-level pairs are aligned by TRL's encode_with_byte_offsets and _align_by_byte_offsets of its
ULDLoss. TRL refuses sentencepiece's kind: there plain_groups counts the bytes of the tokens
themselves, and must agree with TRL on the byte-level pairs.
"""

import json
import pathlib
import random
import sys
from types import SimpleNamespace

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from trl.experimental.gold.gold_trainer import ULDLoss
from trl.experimental.utils import _BYTE_LEVEL_DECODER, encode_with_byte_offsets

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "goldens" / "byte_groups"
sys.path.insert(0, str(HERE.parent / "text"))
from small_tokenizers import CORPUS, fallback_bpe, split_bytes  # noqa: E402

PARTS = {
    "words": "the student reads what its teacher wrote and answers step by step; isn't it?".split(),
    "code": [
        "def f(x):\n    return x ** 2\n",
        "if (a != b) {\n\t++n;\n}",
        "x[i]=y[-1];",
        "// TODO\n",
    ],
    "emoji": ["🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇨🇭🇯🇵", "❤️", "1️⃣"],
    "cjk": ["学生从老师那里学习", "你好，世界！", "東京へ行きます。", "안녕하세요", "ㄅㄆㄇ"],
    "arabic": ["مرحبا بالعالم", "كِتَابٌ", "שלום", "٣٫١٤", "می‌خواهم"],
    "marks": ["cafe\u0301", "a\u0302\u0323", "n\u0303o", "Zu\u0308rich", "ครับ", "हिन्दी", "Größe"],
    "spaces": ["  ", "   ", "        ", "\u00a0", "\u3000", " \t ", "\u2009"],
    "lines": ["\n", "\n\n", "\r\n", "\t", "\t\t", "\n \n", " \n"],
    "digits": ["12345", "3.14159", "1,000,000", "2026-11-28", "0xFF", "7", "½", "x²"],
}


def text_of(draw):
    kinds = draw.sample(sorted(PARTS), draw.randint(1, 4))
    parts = [draw.choice(PARTS[draw.choice(kinds)]) for _ in range(draw.randint(3, 11))]
    return draw.choice(["", " "]).join(parts)


def byte_level(corpus, size, digits):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = split_bytes(digits)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = dict(show_progress=False, initial_alphabet=alphabet)
    tok.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, **options))
    return tok


def bytes_of(tok, id):
    """What a token stands for, read off its own spelling."""
    piece = tok.id_to_token(id)
    if "ByteLevel" in repr(tok.decoder):
        return bytes(_BYTE_LEVEL_DECODER[c] for c in piece)
    if len(piece) == 6 and piece.startswith("<0x"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


def ends_of(tok, text):
    """The byte of the text at which each token ends; a space put before it does not count."""
    lengths = [len(bytes_of(tok, id)) for id in tok.encode(text, add_special_tokens=False).ids]
    surplus = sum(lengths) - len(text.encode())
    assert surplus in (0, 1)
    return [sum(lengths[: i + 1]) - surplus for i in range(len(lengths))]


def plain_groups(student, teacher, text):
    """Numbers of tokens between the ends that both sides have."""
    sides = [ends_of(tok, text) for tok in (student, teacher)]
    counts, begin = [], [0, 0]
    for end in sorted(set(sides[0]) & set(sides[1])):
        if end == 0:
            continue  # a space that is put before the text can be a token of its own
        after = [max(i for i, e in enumerate(side) if e == end) + 1 for side in sides]
        counts += [after[0] - begin[0], after[1] - begin[1]]
        begin = after
    assert begin == [len(side) for side in sides]
    return counts


def trl_groups(student, teacher, text):
    offsets = [encode_with_byte_offsets(tok, [text])[0][1] for tok in (student, teacher)]
    groups = ULDLoss._align_by_byte_offsets(*offsets)
    counts = [len(group) for pair in zip(*groups, strict=True) for group in pair]
    assert 0 not in counts and counts == plain_groups(student, teacher, text), text
    return counts


def trl_matches(student, teacher):
    loss = SimpleNamespace(student_tokenizer=student, teacher_tokenizer=teacher, device=None)
    ULDLoss._initialize_vocabulary_mapping(loss)
    pairs = sorted(loss._vocab_mapping.items())
    return dict(student=[s for _, s in pairs], teacher=[t for t, _ in pairs])


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


def main():
    # The tokenizers learn from other texts of the same parts than those that are compared.
    draw = random.Random(1)
    corpus = [text_of(draw) for _ in range(400)]
    # All Latin letters have a token, so that which are rarest decides nothing; others are bytes.
    first = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    pieces = fallback_bpe(330, None, first, corpus=CORPUS[:5], characters=1000)
    toks = dict(
        fine=byte_level(corpus, 420, "{1,3}"), coarse=byte_level(corpus, 620, ""), pieces=pieces
    )
    for name, tok in toks.items():
        write(OUT / name / "tokenizer.json", json.loads(tok.to_str()))

    draw = random.Random(0)
    texts = [text_of(draw) for _ in range(200)]
    pairs = []
    for student, teacher, groups_of in [
        ("fine", "coarse", trl_groups),
        ("coarse", "fine", trl_groups),
        ("coarse", "pieces", plain_groups),
        ("pieces", "fine", plain_groups),
    ]:
        groups = [groups_of(toks[student], toks[teacher], text) for text in texts]
        pairs.append(dict(student=student, teacher=teacher, groups=groups))
        several = sum(max(g[0::2] + g[1::2]) > 1 for g in groups)
        print(student, teacher, sum(map(len, groups)) // 2, "groups;", several, "texts not 1:1")
    matched = trl_matches(toks["fine"], toks["coarse"])
    write(OUT / "cases.json", dict(texts=texts, pairs=pairs, matched=matched))


if __name__ == "__main__":
    main()
