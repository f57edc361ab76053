"""CUDA C++ text compiles for sm_90a without a GPU, and the hand-written pipelines keep within their registers."""

from pathlib import Path

import pytest

from interlace.core.errors import CompileError
from interlace.pipeline.compiler import compile_text

TEXTS = Path(__file__).parents[2] / "benchmarks" / "pipeline_texts"
CONSTANTS = {
    "copy_1d": {"TILE": 4096},
    "copy_2d": {"ROWS": 16, "COLUMNS": 256},
    "gate": {"TILE": 4096, "THREADS": 256},
    "row_sums": {"ROWS": 16, "COLUMNS": 256, "WARPS": 8},
    "column_sums": {"ROWS": 32, "COLUMNS": 128, "THREADS": 256},
    "layer_norm": {"COLUMNS": 16384},
    "matmul": {"BN": 256, "GROUP": 8, "OUT_BUFFERS": 2},
    "plain_copy": {"UNROLL": 4},
    "plain_gate": {"UNROLL": 2},
    "plain_read": {"UNROLL": 8},
}


def compiled(name: str, stages: int, *, watchdog: bool):
    constants = {**CONSTANTS[name], "STAGES": stages, "PREFETCH": stages - 1}
    head = "".join(f"constexpr int {key} = {value};\n" for key, value in constants.items())
    return compile_text(head + (TEXTS / f"{name}.cu").read_text(), name, watchdog=watchdog)


@pytest.mark.parametrize("watchdog", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CONSTANTS)
def test_hand_written_texts_compile_without_spills_or_warnings(name, stages, watchdog):
    binary = compiled(name, stages, watchdog=watchdog)
    assert (binary.resources.spill_bytes, binary.resources.stack_bytes) == (0, 0)
    assert binary.resources.registers <= (168 if name == "matmul" else 64)
    assert binary.warnings == ()


def test_every_text_of_the_benchmark_is_compiled_here():
    assert {path.stem for path in TEXTS.glob("*.cu")} == set(CONSTANTS)


def test_a_mistake_in_a_text_names_its_kernel_and_line():
    with pytest.raises(CompileError, match=r'(?s)kernel oops .*oops\.cu\(2\).*identifier "y" is undefined'):
        compile_text('extern "C" __global__ void oops(float* x) {\n  x[0] = y;\n}\n', "oops")


def test_spilled_registers_are_counted():
    text = """extern "C" __global__ void __launch_bounds__(1024) spill(float* x) {
      float v[96];
    #pragma unroll
      for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
      __syncthreads();
    #pragma unroll
      for (int i = 0; i < 96; ++i) x[(95 - i) * 1024 + threadIdx.x] = v[i] * v[(i * 7 + 5) % 96];
    }"""
    resources = compile_text(text, "spill").resources
    assert resources.registers == 64
    assert resources.spill_bytes > 0
