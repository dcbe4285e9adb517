"""llama.cpp's HTTP server on one GGUF file, as this process (with the Python that has xllamacpp).

    python llama_server.py FILE.gguf [--slots N] [--context TOKENS] [--key KEY] [--alias NAME]
        [--port N]

One line on stdout once it listens: its address. A line "reload" on stdin makes it open the file
anew at the same address, which it says again: xllamacpp has no router. It serves until its stdin
is closed, so that it does not outlive who started it; with --port until it is told to end. The
cache of keys and values is f32 and attention is not fused: what is left are the differences of f32
arithmetic. One thread, no warm-up.
"""
import argparse
import os
import signal
import sys
import urllib.parse

import xllamacpp


def serve(options, port):
    params = xllamacpp.CommonParams()
    params.model.path = options.file
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    if options.key:
        params.api_keys = [options.key]
    if options.alias:
        params.model_alias = {options.alias}
    params.warmup = False
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    return server


parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("--slots", type=int, default=1)
parser.add_argument("--context", type=int, default=0, help="tokens of a slot; 0: the model's")
parser.add_argument("--key", default="")
parser.add_argument("--alias", default="", help="what the model is called; else its path")
parser.add_argument("--port", type=int, default=0)
arguments = parser.parse_args()

running = serve(arguments, arguments.port)
if arguments.port:
    # llama.cpp takes the signal for itself otherwise, and the interpreter stays.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        signal.pause()
for line in sys.stdin:
    if line.strip() != "reload":
        sys.exit(f"llama_server.py: unknown command {line!r}")
    bound = urllib.parse.urlsplit(running.listening_address).port
    del running
    running = serve(arguments, bound)
