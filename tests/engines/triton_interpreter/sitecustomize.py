"""Lets vLLM's build for CPUs take Triton's interpreter (TRITON_INTERPRET=1) as Triton for the CPU.

Python imports this file when it starts, where its folder is in PYTHONPATH.
"""
from triton import language
from triton.backends import Backend, backends
from triton.runtime import interpreter

# vLLM asks whether Triton has a backend named "cpu"; the interpreter needs none, and never asks
# this one to compile.
other = next(iter(backends.values()))


class Interpreted(other.driver):
    @staticmethod
    def is_active():
        return False


backends["cpu"] = Backend(compiler=other.compiler, driver=Interpreted)

# What language.range counts is an int when interpreted, and a tensor when compiled, which kernels
# call methods of (that of top-k and top-p).
as_before = interpreter._patch_lang


def with_tensors_from_range(kernel):
    scope = as_before(kernel)
    ints = language.range
    scope.set_attr(language, "range", lambda *of: map(interpreter._implicit_cvt, ints(*of)))
    return scope


interpreter._patch_lang = with_tensors_from_range
