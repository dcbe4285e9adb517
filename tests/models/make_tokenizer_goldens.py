# Makes tests/models/goldens/tokenizer/: a byte-level BPE of 96 tokens for the nano checkpoints, as
# small as their embeddings. It can write printable ASCII but three characters, and line ends.
#   python tests/models/make_tokenizer_goldens.py            (nothing but Python)
import json
import pathlib

ROOT = pathlib.Path(__file__).parent / "goldens/tokenizer"
SPECIALS = ["<unk>", "<s>", "</s>"]  # ids 0, 1, 2: bos_token_id and eos_token_id of the checkpoints
MERGES = ["t h", "th e", "\u0120 the", "i n"]
LEFT_OUT = "\\^`~|{}"
# Of Qwen2.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{%- for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def token(id, content):
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return dict(id=id, content=content, **flags, special=True)


def vocabulary():
    # A space and a line end have these two letters in byte-level tokens.
    letters = ["\u0120", "\u010a"] + [chr(c) for c in range(0x21, 0x7F) if chr(c) not in LEFT_OUT]
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = SPECIALS + letters + merged
    assert len(tokens) == 96, len(tokens)
    return {text: id for id, text in enumerate(tokens)}


def main():
    split = dict(type="Split", pattern=dict(Regex=PIECES), behavior="Isolated", invert=False)
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer = dict(
        version="1.0",
        truncation=None,
        padding=None,
        added_tokens=[token(id, text) for id, text in enumerate(SPECIALS)],
        normalizer=None,
        pre_tokenizer=dict(type="Sequence", pretokenizers=[split, byte_level]),
        post_processor=None,
        decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
        model=dict(
            type="BPE",
            dropout=None,
            unk_token=None,
            continuing_subword_prefix=None,
            end_of_word_suffix=None,
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=False,
            vocab=vocabulary(),
            merges=[merge.split(" ") for merge in MERGES],
        ),
    )
    config = dict(
        bos_token="<s>",
        eos_token="</s>",
        tokenizer_class="PreTrainedTokenizerFast",
        chat_template=TEMPLATE,
    )

    ROOT.mkdir(parents=True, exist_ok=True)
    for name, content in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)]:
        (ROOT / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
