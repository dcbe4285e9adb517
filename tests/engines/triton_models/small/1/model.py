"""A Hugging Face checkpoint of the Llama and Qwen families as a model of Triton's, in numpy, fp32.

It gives what our convention names (docs/engines.md, "Triton and other KServe v2 servers"): given
log-probabilities, top-k and hidden states at positions, and as its score the mean log-probability
of the tokens after the prompt. The folder is the parameter `weights` of the configuration.
"""
import json
import pathlib

import numpy as np
import triton_python_backend_utils as triton


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8 : 8 + size])
    tensors.pop("__metadata__", None)
    result = {}
    for name, entry in tensors.items():
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {entry['dtype']}; this model reads F32")
        begin, end = entry["data_offsets"]
        numbers = np.frombuffer(data[8 + size + begin : 8 + size + end], np.float32)
        result[name] = numbers.reshape(entry["shape"])
    return result


class Decoder:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        config = json.loads((folder / "config.json").read_text())
        self.tensors = {}
        for file in sorted(folder.glob("*.safetensors")):
            self.tensors.update(read_safetensors(file))

        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.epsilon = config["rms_norm_eps"]
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        frequencies = theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        self.frequencies = frequencies.astype(np.float32)
        tied = config.get("tie_word_embeddings", False)
        embedding = self.tensors["model.embed_tokens.weight"]
        self.head = embedding if tied else self.tensors["lm_head.weight"]

    def norm(self, x, name):
        scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.epsilon)
        return x * scale * self.tensors[name + ".weight"]

    def linear(self, x, name):
        y = x @ self.tensors[name + ".weight"].T
        bias = self.tensors.get(name + ".bias")
        return y if bias is None else y + bias

    def rotate(self, x):
        """x [N, heads, head_dim], of positions 0 to N - 1."""
        angles = np.outer(np.arange(len(x), dtype=np.float32), self.frequencies)
        cos = np.cos(angles)[:, None]
        sin = np.sin(angles)[:, None]
        first, second = np.split(x, 2, -1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def attention(self, x, layer):
        name = f"model.layers.{layer}.self_attn."
        shape = (len(x), -1, self.head_dim)
        q = self.linear(x, name + "q_proj").reshape(shape)
        k = self.linear(x, name + "k_proj").reshape(shape)
        v = self.linear(x, name + "v_proj").reshape(shape)
        if name + "q_norm.weight" in self.tensors:
            q = self.norm(q, name + "q_norm")
            k = self.norm(k, name + "k_norm")

        group = self.heads // self.kv_heads
        q = self.rotate(q).transpose(1, 0, 2)
        k = np.repeat(self.rotate(k), group, 1).transpose(1, 2, 0)
        v = np.repeat(v, group, 1).transpose(1, 0, 2)
        scores = q @ k / np.float32(np.sqrt(self.head_dim))
        future = np.triu(np.ones(scores.shape[1:], bool), 1)
        weights = np.exp(log_softmax(np.where(future, np.float32(-1e30), scores)))
        mixed = (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
        return self.linear(mixed, name + "o_proj")

    def mlp(self, x, layer):
        name = f"model.layers.{layer}.mlp."
        gate = self.linear(x, name + "gate_proj")
        return self.linear(
            gate / (1 + np.exp(-gate)) * self.linear(x, name + "up_proj"), name + "down_proj"
        )

    def hidden_states(self, ids):
        x = self.tensors["model.embed_tokens.weight"][ids]
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            x = x + self.attention(self.norm(x, name + "input_layernorm"), layer)
            x = x + self.mlp(self.norm(x, name + "post_attention_layernorm"), layer)
        return self.norm(x, "model.norm")


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def answer(decoder, ids, positions, top_k, prompt_length):
    """Every output by its name."""
    if ids.size == 0 or ids.min() < 0 or ids.max() >= len(decoder.head):
        raise ValueError(f"input_ids outside the vocabulary of {len(decoder.head)}")
    if positions.min() < 0 or positions.max() >= len(ids):
        raise ValueError(f"positions outside the {len(ids)} tokens")
    hidden = decoder.hidden_states(ids)
    log_probs = log_softmax(hidden @ decoder.head.T)
    given = np.append(log_probs[np.arange(len(ids) - 1), ids[1:]], np.float32(0))
    best = np.argsort(-log_probs[positions], -1, kind="stable")[:, :top_k]
    score = given[max(prompt_length, 1) - 1 : -1].mean() if prompt_length < len(ids) else 0
    return {
        "given_logprobs": given[positions],
        "topk_ids": best.astype(np.int32),
        "topk_logprobs": np.take_along_axis(log_probs[positions], best, -1),
        "hidden_states": hidden[positions],
        "scores": np.array([score], np.float32),
    }


def number(request, name, default):
    tensor = triton.get_input_tensor_by_name(request, name)
    return default if tensor is None else int(tensor.as_numpy()[0])


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.decoder = Decoder(parameters["weights"]["string_value"])

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        try:
            outputs = answer(
                self.decoder,
                triton.get_input_tensor_by_name(request, "input_ids").as_numpy(),
                triton.get_input_tensor_by_name(request, "positions").as_numpy(),
                number(request, "top_k", 1),
                number(request, "prompt_length", 1),
            )
        except ValueError as error:
            return triton.InferenceResponse(error=triton.TritonError(str(error)))
        wanted = request.requested_output_names()
        return triton.InferenceResponse(
            [triton.Tensor(n, np.ascontiguousarray(outputs[n])) for n in outputs if n in wanted]
        )
