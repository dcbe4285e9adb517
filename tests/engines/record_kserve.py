"""Records what a real Triton says, for the tests that run without one, in kserve_recorded.h.

    RETORT_TRITON_PYTHON=.../bin/python python3 record_kserve.py CHECKPOINT

CHECKPOINT: a small folder in fp32 (`retort model init`). The tests know that of 400 rows and hidden
size 8.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
IDS = [5, 6, 7, 8, 9]
POSITIONS = [0, 2, 3]


def infer(inputs, outputs, length=True):
    header = json.dumps(
        {
            "id": "retort-1",
            "inputs": [
                dict(
                    name=name,
                    shape=[len(values)],
                    datatype="INT32",
                    parameters={"binary_data_size": 4 * len(values)},
                )
                for name, values in inputs.items()
            ],
            "outputs": [dict(name=name, parameters={"binary_data": True}) for name in outputs],
        }
    ).encode()
    body = header + b"".join(struct.pack(f"<{len(v)}i", *v) for v in inputs.values())
    return body, {"Inference-Header-Content-Length": str(len(header))} if length else {}


def ask(address, path, body=None, headers={}):
    """Status, type, length of the JSON header, and body."""
    headers = {"Content-Type": "application/octet-stream", **headers}
    request = urllib.request.Request(address + path, body, headers)
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        length = answer.headers.get("Inference-Header-Content-Length", "")
        return answer.status, answer.headers.get("Content-Type", ""), length, answer.read()


def literal(data):
    """C++ string literals of at most 88 characters; octal escapes end by themselves."""
    lines, line = [], ""
    for byte in data:
        char = chr(byte)
        plain = 32 <= byte < 127 and char not in '"\\?'
        text = char if plain else "\\" + char if char in '"\\' else f"\\{byte:03o}"
        if len(line) + len(text) > 88:
            lines.append(line)
            line = ""
        line += text
    lines.append(line)
    return "\n".join(f'    "{line}"' for line in lines)


def main():
    server = subprocess.Popen(
        [os.environ["RETORT_TRITON_PYTHON"], HERE / "triton_server.py", sys.argv[1]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    address = server.stdout.readline().strip()
    small = "/v2/models/small"
    scores = dict(input_ids=IDS, positions=POSITIONS, top_k=[2])
    outputs = ["given_logprobs", "topk_ids", "topk_logprobs"]
    answers = {
        "Server": ask(address, "/v2"),
        "Index": ask(address, "/v2/repository/index", b"{}"),
        "Model": ask(address, small),
        "Configuration": ask(address, small + "/config"),
        "Scores": ask(address, small + "/infer", *infer(scores, outputs)),
        "HiddenStates": ask(address, small + "/infer", *infer(scores, ["hidden_states"])),
        "Rewards": ask(address, small + "/infer", *infer(scores, ["scores"])),
        "NoLength": ask(address, small + "/infer", *infer(scores, outputs, length=False)),
        "Raised": ask(
            address, "/v2/models/faulty/infer", *infer(dict(tokens=IDS), ["scores"])
        ),
        "Unknown": ask(address, "/v2/models/zzz/infer", *infer(scores, outputs)),
    }
    server.stdin.close()
    server.wait(60)

    text = "// What Triton 2.51.0 said (record_kserve.py).\n#pragma once\n\n"
    text += "#include <string_view>\n\nnamespace retort::engines::kserve::recorded {\n\n"
    text += "struct Answer {\n  int status;\n  std::string_view type;\n"
    text += "  std::string_view header_length;  // empty: it has none\n"
    text += "  std::string_view body;\n};\n"
    text += "// clang-format off\n"
    for name, (status, kind, length, body) in answers.items():
        body = body.replace(sys.argv[1].encode(), b"/weights")
        text += f'\ninline constexpr Answer k{name}{{{status}, "{kind}", "{length}", {{\n'
        text += literal(body) + f",\n    {len(body)}}}}};\n"
    text += "// clang-format on\n\n}  // namespace retort::engines::kserve::recorded\n"
    (HERE / "kserve_recorded.h").write_text(text)


if __name__ == "__main__":
    main()
