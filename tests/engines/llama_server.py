"""llama.cpp's HTTP server on one GGUF file, as this process (with the Python that has xllamacpp).

    python llama_server.py FILE.gguf

One line on stdout once it listens: its address. Then it serves until its stdin is closed, so that
it does not outlive who started it. The cache of keys and values is f32 and attention is not fused:
what is left are the differences of f32 arithmetic. One thread, one sequence, no warm-up.
"""
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = 0
params.n_parallel = 1
params.warmup = False
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
params.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
