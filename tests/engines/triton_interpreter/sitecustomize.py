"""Lets vLLM's build for CPUs take Triton's interpreter (TRITON_INTERPRET=1) as Triton for the CPU.

Python imports this file when it starts, where its folder is in PYTHONPATH. vLLM asks whether Triton
has a backend named "cpu"; the interpreter needs none, and never asks this one to compile.
"""
from triton.backends import Backend, backends

other = next(iter(backends.values()))


class Interpreted(other.driver):
    @staticmethod
    def is_active():
        return False


backends["cpu"] = Backend(compiler=other.compiler, driver=Interpreted)
