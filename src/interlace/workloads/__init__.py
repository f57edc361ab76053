"""Workloads: the problems that the commands build, run and measure."""

from __future__ import annotations

from interlace.models.llama import LLAMAS, LlamaShape, build_decode_graph
from interlace.workloads.attention import Attention, attention
from interlace.workloads.base import Workload
from interlace.workloads.block_sparse import BlockSparse, block_sparse
from interlace.workloads.chains import (
    NormedMatmuls,
    OneMatmul,
    TwoCopies,
    TwoMatmuls,
    normed_matmuls,
    one_matmul,
    two_copies,
    two_matmuls,
)
from interlace.workloads.conv import ConvChain, ConvPair, ResNetBlock, conv_chain
from interlace.workloads.dag import Dag, dag
from interlace.workloads.decode import Decode
from interlace.workloads.ffn import MODELS, FeedForward, FFNShape, ffn
from interlace.workloads.ffn_block import FFNBlock, ffn_block
from interlace.workloads.ffn_layers import FFNLayers, ffn_layers
from interlace.workloads.moe import MoE, moe
from interlace.workloads.output_ffn import OutputFFN, output_ffn
from interlace.workloads.prefill import PrefillAttention, prefill_attention
from interlace.workloads.quadrature import Quadrature, quadrature
from interlace.workloads.ragged import RaggedAttention, ragged_attention

#: Workloads that the commands accept, one per line.
WORKLOADS: tuple[type[Workload], ...] = (
    FeedForward,
    FFNLayers,
    TwoMatmuls,
    OneMatmul,
    TwoCopies,
    Dag,
    Decode,
    PrefillAttention,
    RaggedAttention,
    MoE,
    BlockSparse,
    Quadrature,
    FFNBlock,
    OutputFFN,
    NormedMatmuls,
    Attention,
    ConvPair,
    ConvChain,
    ResNetBlock,
)

__all__ = [
    "LLAMAS",
    "MODELS",
    "WORKLOADS",
    "Attention",
    "BlockSparse",
    "ConvChain",
    "ConvPair",
    "Dag",
    "Decode",
    "FFNBlock",
    "FFNLayers",
    "FFNShape",
    "FeedForward",
    "LlamaShape",
    "MoE",
    "NormedMatmuls",
    "OneMatmul",
    "OutputFFN",
    "PrefillAttention",
    "Quadrature",
    "RaggedAttention",
    "ResNetBlock",
    "TwoCopies",
    "TwoMatmuls",
    "Workload",
    "attention",
    "block_sparse",
    "build_decode_graph",
    "conv_chain",
    "dag",
    "ffn",
    "ffn_block",
    "ffn_layers",
    "moe",
    "normed_matmuls",
    "one_matmul",
    "output_ffn",
    "prefill_attention",
    "quadrature",
    "ragged_attention",
    "two_copies",
    "two_matmuls",
]
