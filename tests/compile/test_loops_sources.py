"""CUDA source compiles for sm_90a without a GPU, and ptxas's report is parsed."""

from pathlib import Path

import pytest

from interlace.core.errors import CompileError
from interlace.kernels.cuda.compiler import compile_source
from interlace.kernels.cuda.ptx import PTX

RIVALS = Path(__file__).parents[2] / "benchmarks" / "rivals"


@pytest.mark.parametrize("text", sorted(RIVALS.glob("*.cu")), ids=lambda text: text.stem)
def test_rivals_of_the_benchmark_compile_without_spills_or_warnings(text):
    binary = compile_source(f"constexpr int UNROLL = 4;\n{text.read_text()}", text.stem, preamble=PTX)
    assert (binary.resources.spill_bytes, binary.resources.stack_bytes) == (0, 0)
    assert binary.resources.registers <= 64
    assert binary.warnings == ()


def test_a_mistake_in_a_text_names_its_kernel_and_line():
    with pytest.raises(CompileError, match=r'(?s)kernel oops .*oops\.cu\(2\).*identifier "y" is undefined'):
        compile_source('extern "C" __global__ void oops(float* x) {\n  x[0] = y;\n}\n', "oops", preamble=PTX)


def test_spilled_registers_are_counted():
    text = """extern "C" __global__ void __launch_bounds__(1024) spill(float* x) {
      float v[96];
    #pragma unroll
      for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
      __syncthreads();
    #pragma unroll
      for (int i = 0; i < 96; ++i) x[(95 - i) * 1024 + threadIdx.x] = v[i] * v[(i * 7 + 5) % 96];
    }"""
    resources = compile_source(text, "spill", preamble=PTX).resources
    assert resources.registers == 64
    assert resources.spill_bytes > 0


def test_bytes_of_code_are_sixteen_an_instruction():
    def naps(count: int) -> int:
        text = 'extern "C" __global__ void nap() { ' + 'asm volatile("nanosleep.u32 20;"); ' * count + "}"
        return compile_source(text, "nap", preamble=PTX).resources.code_bytes

    assert naps(264) - naps(200) == 16 * 64
