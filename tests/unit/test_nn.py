"""PyTorch modules on the CPU: what they compute, what they refuse, and which instance serves which call."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

from interlace.core.devices import CPU, H100, H200  # noqa: E402
from interlace.core.dtypes import bf16, fp16  # noqa: E402
from interlace.core.errors import ArgumentError, DeviceError, DTypeError, GraphError, ShapeError  # noqa: E402
from interlace.deploy import Choice  # noqa: E402
from interlace.executors.megakernel import MegakernelExecutor  # noqa: E402
from interlace.kernels.matmul import Activation  # noqa: E402
from interlace.megakernel import capture  # noqa: E402
from interlace.nn import FFN, FallbackWarning, SwiGLU, devices, op, plain  # noqa: E402
from interlace.nn.instances import Instances, Key  # noqa: E402
from interlace.policies.schedule import Schedule  # noqa: E402
from interlace.workloads.ffn import FFNShape  # noqa: E402
from interlace.workloads.ffn import ffn as ffn_graph  # noqa: E402

HIDDEN, WIDTH = 32, 48
ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu-tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "silu": nn.functional.silu,
}

pytestmark = pytest.mark.filterwarnings("ignore::interlace.nn.FallbackWarning")


@pytest.fixture(autouse=True)
def _nothing_warned_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "_warned", set())


def linears(*names: str, bias: bool = False) -> list[nn.Linear]:
    torch.manual_seed(0)
    widths = {"up": (HIDDEN, WIDTH), "gate": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
    return [nn.Linear(*widths[name], bias=bias) for name in names]


def swiglu() -> tuple[SwiGLU, Callable[[torch.Tensor], torch.Tensor]]:
    gate, up, down = linears("gate", "up", "down")
    return SwiGLU.from_linears(gate, up, down), lambda x: down(nn.functional.silu(gate(x)) * up(x))


@pytest.mark.parametrize("extents", [(5,), (2, 3), (2, 3, 4), (0, 3)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_ffn_without_a_gpu_is_what_its_linears_compute(
    activation: str, bias: bool, extents: tuple[int, ...]
) -> None:
    up, down = linears("up", "down", bias=bias)
    x = torch.randn(*extents, HIDDEN)
    for given in (activation, Activation(activation)):
        module = FFN.from_linears(up, down, given)
        with torch.inference_mode():
            assert torch.equal(module(x), down(ACTIVATIONS[activation](up(x))))


def build_normed(eps: float = 1e-3) -> tuple[SwiGLU, Callable[[torch.Tensor], torch.Tensor]]:
    """The half of a layer, and the same by PyTorch's modules."""
    gate, up, down = linears("gate", "up", "down")
    norm = nn.RMSNorm(HIDDEN, eps=eps)
    nn.init.normal_(norm.weight)
    module = SwiGLU.from_linears(gate, up, down, norm=norm)
    assert module.w_norm is norm.weight
    return module, lambda x: x + down(nn.functional.silu(gate(norm(x))) * up(norm(x)))


@pytest.mark.parametrize("tokens", [1, 64, 65])
def test_with_a_norm_a_module_is_the_half_of_a_layer(tokens: int) -> None:
    module, expected = build_normed()
    up, down = linears("up", "down", bias=True)
    norm = nn.RMSNorm(HIDDEN, eps=1e-3)
    plain_one = FFN.from_linears(up, down, "relu", norm=norm)
    x = torch.randn(tokens, HIDDEN, requires_grad=True)
    with torch.inference_mode():
        torch.testing.assert_close(module(x), expected(x))
        torch.testing.assert_close(plain_one(x), x + down(torch.relu(up(norm(x)))))
    turned = torch.randn(4, 8, HIDDEN).transpose(0, 1)
    for call in (module, lambda x: torch.ops.interlace.ffn(x, *_weights(module))):
        with torch.inference_mode():
            assert call(turned).is_contiguous()
    torch.testing.assert_close(module(x), expected(x))  # with gradients
    (module(x) - expected(x)).square().sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().max()) < 1e-4


@pytest.mark.parametrize("norm", [None, 1e-5])
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
def test_a_launch_is_given_what_its_graph_has_between_the_ops(rows: int, norm: float | None) -> None:
    for hidden, dtype in ((128, bf16), (136, bf16), (128, fp16)):
        shape = FFNShape(hidden, 192, Activation.SILU, True, norm)
        graph = ffn_graph(rows, shape, dtype)
        made = op._allocate_intermediates(torch.empty(rows, hidden, dtype=getattr(torch, dtype.torch)), rows, shape)
        for device in (H100, CPU):  # whichever it is for, as nobody asks there
            assert ffn_graph(rows, shape, dtype, device=device) == graph
        ends = {*graph.inputs, *graph.outputs}
        assert {name: tuple(t.shape) for name, t in made.items()} == {
            t.name: t.shape for t in graph.tensors if t.name not in ends
        }


def test_norms_that_do_not_fit_are_refused() -> None:
    gate, up, down = linears("gate", "up", "down")

    class RMSNorm(nn.RMSNorm):
        """Norm of a subclass, unknown to the package."""

    class LlamaRMSNorm(nn.RMSNorm):
        __module__ = "transformers.models.llama"

        def __init__(self) -> None:
            super().__init__(HIDDEN)
            self.variance_epsilon = 1e-4

    hooked = nn.RMSNorm(HIDDEN, eps=1e-5)
    hooked.register_forward_hook(lambda *_: None)
    other = nn.RMSNorm(HIDDEN, eps=1e-5)
    other.forward = lambda x: x  # type: ignore[method-assign]
    for norm, error, message in (
        (1e-5, ArgumentError, "from_linears: norm is 1e-05"),
        (nn.LayerNorm(HIDDEN), GraphError, "norm is a torch.nn.modules.*LayerNorm; it must be torch's RMSNorm, or one"),
        (RMSNorm(HIDDEN, eps=1e-5), GraphError, "norm is a .*test_nn.RMSNorm; it must be"),
        (other, GraphError, "norm is a .*RMSNorm with a forward of its own"),
        (nn.RMSNorm(HIDDEN), GraphError, "norm has eps None, of which dtypes and versions .* give it one"),
        (nn.RMSNorm(HIDDEN, elementwise_affine=False), GraphError, "norm has no weight; make it with elementwise_aff"),
        (nn.RMSNorm(WIDTH, 1e-5), ShapeError, r"norm has a weight of shape \(48,\); .* it must be \(32,\)"),
        (nn.RMSNorm(HIDDEN, 1e-5).double(), DTypeError, "norm is torch.float64, up is torch.float32; cast them"),
        (nn.RMSNorm(HIDDEN, 1e-5, device="meta"), GraphError, "norm is on meta, up is on cpu; move them to one device"),
        (hooked, GraphError, "norm has .*hook.*, which the new module would drop"),
    ):
        with pytest.raises(error, match=message):
            SwiGLU.from_linears(gate, up, down, norm=norm)  # type: ignore[arg-type]
    assert SwiGLU.from_linears(gate, up, down, norm=LlamaRMSNorm()).norm == 1e-4
    for eps in (-1.0, float("nan"), float("inf"), True, "1e-5"):
        with pytest.raises(ArgumentError, match=r"SwiGLU: norm is .*; give what it adds to the mean square, such as"):
            SwiGLU(gate.weight, up.weight, down.weight, nn.Parameter(torch.ones(HIDDEN)), eps)  # type: ignore[arg-type]
    for w_norm, eps in ((None, 1e-5), (nn.Parameter(torch.ones(HIDDEN)), None)):
        with pytest.raises(ArgumentError, match="SwiGLU: give w_norm and norm, such as 1e-5, or neither"):
            SwiGLU(gate.weight, up.weight, down.weight, w_norm, eps)
        with pytest.raises(ArgumentError, match="ffn: give w_norm and norm, such as 1e-5, or neither"):
            op.ffn(torch.ones(2, HIDDEN), up.weight, down.weight, Activation.RELU, w_norm=w_norm, norm=eps)


@pytest.mark.parametrize("extents", [(5,), (2, 3), (2, 3, 4)])
def test_a_swiglu_without_a_gpu_is_what_its_linears_compute(extents: tuple[int, ...]) -> None:
    module, expected = swiglu()
    x = torch.randn(*extents, HIDDEN)
    with torch.no_grad():
        assert torch.equal(module(x), expected(x))
        strided = torch.randn(HIDDEN, *extents).movedim(0, -1)
        assert torch.allclose(module(strided), expected(strided), atol=1e-6)
        assert module(strided).is_contiguous()


def test_gradients_flow() -> None:
    module, expected = swiglu()
    x = torch.randn(3, HIDDEN, requires_grad=True)
    inputs = (x, *module.parameters())
    got = torch.autograd.grad(module(x).square().sum(), inputs)
    wanted = torch.autograd.grad(expected(x).square().sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_parameters_are_shared_unless_their_layout_must_change() -> None:
    up, down = linears("up", "down", bias=True)
    module = FFN.from_linears(up, down, "relu")
    assert [module.w_up, module.b_up, module.w_down, module.b_down] == [up.weight, up.bias, down.weight, down.bias]
    assert module.w_up is up.weight
    assert module.b_down is down.bias

    gate, up, down = linears("gate", "up", "down")
    gate.weight = nn.Parameter(torch.randn(HIDDEN, WIDTH).T, requires_grad=False)
    gated = SwiGLU.from_linears(gate, up, down)
    assert gated.w_up is up.weight
    assert gated.w_gate.is_contiguous()
    assert torch.equal(gated.w_gate, gate.weight)
    assert not gated.w_gate.requires_grad


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.thorough)])
def test_torch_compile_finds_one_graph(backend: str) -> None:
    up, down = linears("up", "down", bias=True)
    for module in (swiglu()[0], build_normed()[0], FFN.from_linears(up, down, "gelu-tanh")):
        torch.compiler.reset()
        compiled = torch.compile(module, fullgraph=True, backend=backend)
        for m in (3, 4, 5):  # from the second on, the extent is a symbol
            x = torch.randn(2, m, HIDDEN)
            with torch.inference_mode():
                assert torch.equal(compiled(x), module(x))
            assert torch.equal(compiled(x), module(x))  # with gradients
            assert compiled(x).requires_grad


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_the_operator_keeps_pytorchs_contract(gated: bool, bias: bool) -> None:
    up, gate, down = linears("up", "gate", "down", bias=bias)
    weights = up.weight, gate.weight if gated else None, down.weight, up.bias, down.bias
    arguments = (torch.randn(2, 3, HIDDEN), *(None if w is None else w.detach() for w in weights), "silu")
    for norm in ((), (torch.ones(HIDDEN), 1e-5)):
        results = torch.library.opcheck(torch.ops.interlace.ffn.default, (*arguments, *norm))
        assert set(results.values()) == {"SUCCESS"}


def test_autocast_decides_the_dtype() -> None:
    module, expected = swiglu()
    x = torch.randn(3, HIDDEN)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        out = module(x)
        assert out.dtype is torch.bfloat16
        assert torch.equal(out, expected(x))


def test_each_reason_to_fall_back_is_given_once() -> None:
    module, _ = swiglu()
    x = torch.randn(3, HIDDEN)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            module(x)
            with torch.inference_mode():
                module(x)
                swiglu()[0](x)
                with torch.autocast("cpu", torch.bfloat16):
                    module(x)
    assert [w.category for w in caught] == [FallbackWarning] * 3
    reasons = [str(w.message) for w in caught]
    assert "gradients are wanted; call it under torch.inference_mode()" in reasons[0]
    assert "tensors are on a device of type 'cpu'" in reasons[1]
    assert "autocast is on; cast the module" in reasons[2]


def test_what_keeps_a_hopper_gpu_from_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the device itself, which the fake tensor claims to be."""

    gpu = torch.device("cuda", 0)

    @dataclass
    class Fake:
        shape: tuple[int, ...] = (WIDTH, HIDDEN)
        dtype: torch.dtype = torch.bfloat16
        address: int = 4096
        contiguous: bool = True
        device: torch.device = gpu

        def is_contiguous(self) -> bool:
            return self.contiguous

        def data_ptr(self) -> int:
            return self.address

    def reason(x: Fake | None = None, w_up: Fake | None = None) -> str | None:
        return op.fallback_reason({"x": x or Fake(), "w_up": w_up or Fake()})

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(devices, "_get_capability", lambda device: (8, 0))
    assert "compute capability 8.0, the kernels are for 9.0" in reason()
    monkeypatch.setattr(devices, "_get_capability", lambda device: (9, 0))
    assert reason() is None
    assert "torch.float32, the kernels take bf16 and fp16" in reason(Fake(dtype=torch.float32))
    assert "widths are 32 and 36, the kernels take multiples of 8" in reason(w_up=Fake((36, 32)))
    assert "not contiguous" in reason(w_up=Fake(contiguous=False))
    assert "not aligned" in reason(Fake(address=4104))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "the kernels are for NVIDIA GPUs" in reason()


def test_linears_that_do_not_fit_are_refused() -> None:
    gate, up, down = linears("gate", "up", "down")
    (biased,) = linears("up", bias=True)
    with pytest.raises(GraphError, match=r"up has a bias, down has no bias; give both a bias .* or neither"):
        FFN.from_linears(biased, down, "relu")
    with pytest.raises(GraphError, match=r"gate has a bias; .* bias=False"):
        SwiGLU.from_linears(biased, up, down)
    with pytest.raises(GraphError, match=r"unknown activation 'gelu'; it must be one of .*'gelu-tanh'"):
        FFN.from_linears(up, down, "gelu")
    with pytest.raises(ShapeError, match=r"gate .* \(32, 48\), next to up with \(48, 32\) it must be \(48, 32\)"):
        SwiGLU.from_linears(down, up, gate)
    with pytest.raises(DTypeError, match=r"down is torch.float16, up is torch.float32; cast them"):
        FFN.from_linears(up, nn.Linear(WIDTH, HIDDEN, bias=False, dtype=torch.float16), "relu")
    with pytest.raises(GraphError, match=r"down is on meta, up is on cpu; move them to one device"):
        FFN.from_linears(up, nn.Linear(WIDTH, HIDDEN, bias=False, device="meta"), "relu")


def test_only_plain_linears_are_taken() -> None:
    """A weight alone would lose what a subclass, a wrapper or a parametrisation adds."""

    class Adapted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    class Called(nn.Linear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().__call__(x)

    up, down = linears("up", "down")
    wrapped, _ = linears("up", "down")
    wrapped.forward = lambda x: x
    parametrised = nn.utils.parametrizations.weight_norm(linears("up")[0])
    others = (Adapted(HIDDEN, WIDTH, bias=False), Called(HIDDEN, WIDTH, bias=False), wrapped, parametrised, nn.ReLU())
    for other in (*others, nn.LazyLinear(WIDTH)):
        with pytest.raises(GraphError, match=r"up is a .*, which may compute more than nn.Linear; merge adapters"):
            FFN.from_linears(other, down, "relu")
    assert FFN.from_linears(up, down, "relu").w_up is up.weight


def log(*_: object) -> None:
    """A hook."""


@pytest.mark.parametrize(
    ("register", "kind"),
    [
        ("register_forward_hook", "forward hooks"),
        ("register_forward_pre_hook", "forward pre hooks"),
        ("register_full_backward_hook", "backward hooks"),
        ("register_full_backward_pre_hook", "backward pre hooks"),
        ("register_state_dict_post_hook", "state dict hooks"),
        ("register_state_dict_pre_hook", "state dict pre hooks"),
        ("register_load_state_dict_pre_hook", "load state dict pre hooks"),
        ("register_load_state_dict_post_hook", "load state dict post hooks"),
    ],
)
def test_hooks_that_would_be_dropped_are_named(register: str, kind: str) -> None:
    gate, up, down = linears("gate", "up", "down")
    handle = getattr(gate, register)(log)
    with pytest.raises(GraphError, match=rf"gate has {kind} \(log\), which the new module would drop; remove them"):
        SwiGLU.from_linears(gate, up, down)
    if handle is not None and register != "register_state_dict_post_hook":
        handle.remove()
        assert SwiGLU.from_linears(gate, up, down).w_gate is gate.weight


def test_parts_that_would_be_dropped_are_named() -> None:
    def expect_refusal(change: Callable[[nn.Linear], object], message: str) -> None:
        up, down = linears("up", "down", bias=True)
        change(up)
        with pytest.raises(GraphError, match=message):
            FFN.from_linears(up, down, "relu")

    expect_refusal(
        lambda up: up.add_module("lora_a", nn.Linear(2, 2)), "up holds lora_a in addition to its weight and bias"
    )
    expect_refusal(
        lambda up: up.register_buffer("scale", torch.ones(1)), "up holds scale in addition to its weight and bias"
    )
    expect_refusal(nn.utils.spectral_norm, "up has forward pre hooks")
    expect_refusal(lambda up: prune.l1_unstructured(up, "weight", 0.5), "up has forward pre hooks")

    class Quantised(nn.Parameter):
        pass

    expect_refusal(
        lambda up: setattr(up, "weight", Quantised(up.weight.detach())), "the weight of up is a Quantised, not a"
    )
    expect_refusal(
        lambda up: setattr(up, "bias", Quantised(up.bias.detach())), "the bias of up is a Quantised, not a plain"
    )

    def hook(up: nn.Linear) -> None:
        up.weight = nn.Parameter(torch.randn(HIDDEN, WIDTH).T)
        up.weight.register_hook(log)

    expect_refusal(hook, "the weight of up has hooks and is not contiguous")


def test_hooks_on_parameters_and_the_mode_stay() -> None:
    up, down = linears("up", "down")
    calls: list[torch.Tensor] = []
    up.weight.register_hook(lambda grad: calls.append(grad))
    up.eval()
    module = FFN.from_linears(up, down, "relu")
    assert not module.training
    module(torch.randn(2, HIDDEN)).sum().backward()
    assert len(calls) == 1


def test_weights_that_are_no_numbers_yet_are_refused() -> None:
    up, down = (nn.Linear(*widths, bias=False, device="meta") for widths in ((HIDDEN, WIDTH), (WIDTH, HIDDEN)))
    with pytest.raises(GraphError, match="the linears have no data, they are on the device 'meta'; load"):
        FFN.from_linears(up, down, "relu")
    up, down = linears("up", "down")
    for linear in (up, down):
        linear.weight = nn.Parameter(linear.weight.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(DTypeError, match=r"the linears are torch.int8; cast or dequantise them"):
        FFN.from_linears(up, down, "relu")
    up, down = linears("up", "down", bias=True)
    up.bias = nn.Parameter(up.bias.detach().half())
    with pytest.raises(DTypeError, match=r"the bias of up is torch.float16, up is torch.float32; cast"):
        FFN.from_linears(up, down, "relu")
    up.bias = nn.Parameter(torch.zeros(1))
    with pytest.raises(
        ShapeError, match=r"up has a bias of shape \(1,\); in addition to its weight it must be \(48,\)"
    ):
        FFN.from_linears(up, down, "relu")


def test_inputs_that_do_not_fit_are_refused() -> None:
    module, _ = swiglu()
    with pytest.raises(ShapeError, match=r"x has shape \(3, 31\); its last extent must be hidden = 32"):
        module(torch.randn(3, 31))
    with pytest.raises(ShapeError, match=r"x has shape \(\); its last extent"):
        module(torch.tensor(1.0))
    with pytest.raises(DTypeError, match="x is a ndarray; pass a tensor"):
        module(np.ones((3, HIDDEN)))
    with pytest.raises(DTypeError, match=r"x is torch.bfloat16, the weights are torch.float32; cast"):
        module(torch.randn(3, HIDDEN, dtype=torch.bfloat16))


# ---- what runs


class FakeLaunch:
    """Computes as plain PyTorch does, on rows that are filled with zeros; counts."""

    made: ClassVar[list[FakeLaunch]] = []
    is_running = False

    def __init__(self, key: Key, tensors: dict[str, torch.Tensor]) -> None:
        self.key = key
        self.runs: list[int] = []
        self.made.append(self)

    def run(self, tensors: dict[str, torch.Tensor]) -> None:
        x, out = tensors["x"], tensors["out"]
        assert len(x) <= self.key.rows == len(out)
        padded = torch.zeros(self.key.rows, x.shape[1])
        padded[: len(x)] = x
        weights = [tensors.get(name) for name in ("w_up", "w_gate", "w_down", "b_up", "b_down")]
        norm = self.key.shape.norm
        assert (norm is None) == ("normed" not in tensors)
        out.copy_(plain.run_plain(padded, *weights, self.key.shape.activation.value, tensors.get("w_norm"), norm))
        self.runs.append(len(x))

    def release(self) -> None:
        pass


LAUNCH = Choice(MegakernelExecutor, Schedule(132), 10.0, 12.0, "measured")
LIBRARY = Choice(None, None, 12.0, 10.0, "measured")


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeLaunch]:
    """A CPU that takes launches; they run up to 100 tokens."""
    monkeypatch.setattr(FakeLaunch, "made", [])
    monkeypatch.setattr(op, "_static_fallback_reason", lambda *_: None)
    monkeypatch.setattr(op, "_DTYPES", {torch.float32: bf16})
    monkeypatch.setattr(op, "_instances", Instances(FakeLaunch))
    monkeypatch.setattr(op, "choose_ffn", lambda *of: LAUNCH if of[-1] <= 100 else LIBRARY)
    monkeypatch.setattr(op, "find_spec", lambda name: H200)
    monkeypatch.setattr(op, "get_capture_id", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    return FakeLaunch


@pytest.mark.filterwarnings("error::interlace.nn.FallbackWarning")
def test_what_is_chosen_runs_and_says_nothing(fake_gpu: type[FakeLaunch]) -> None:
    module, expected = swiglu()
    with torch.inference_mode():
        for tokens, launches in ((100, 1), (101, 1), (99, 1), (3, 2)):
            x = torch.randn(tokens, HIDDEN)
            torch.testing.assert_close(module(x), expected(x))
            assert len(fake_gpu.made) == launches, tokens
    assert [made.runs for made in fake_gpu.made] == [[100, 99], [3]]


def test_few_tokens_have_norm_and_sum_in_their_launch(fake_gpu: type[FakeLaunch]) -> None:
    module, expected = build_normed()
    with torch.inference_mode():
        for extents in ((64,), (65,), (8, 8), (5, 13), (120,)):
            x = torch.randn(*extents, HIDDEN)
            torch.testing.assert_close(module(x), expected(x))
            torch.testing.assert_close(torch.ops.interlace.ffn(x, *_weights(module)), expected(x))
    assert [(made.key.rows, made.key.shape.norm) for made in fake_gpu.made] == [(64, 1e-3), (128, None)]
    assert [made.runs for made in fake_gpu.made] == [[64] * 4, [65] * 4]


def test_where_no_launch_of_all_is_faster_one_of_the_ffn_may_be(
    fake_gpu: type[FakeLaunch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def choice(device: object, shape: FFNShape, *of: object) -> Choice:
        return LIBRARY if shape.norm is not None or of[-1] == 7 else LAUNCH

    monkeypatch.setattr(op, "choose_ffn", choice)
    module, expected = build_normed()
    assert (module.explain(5), module.explain(7)) == (LAUNCH, LIBRARY)
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    with torch.inference_mode():
        for tokens, call in ((5, module), (7, module), (6, lambda x: torch.ops.interlace.ffn(x, *_weights(module)))):
            x = torch.randn(tokens, HIDDEN)
            torch.testing.assert_close(call(x), expected(x))
        x = torch.randn(9, HIDDEN)
        torch.testing.assert_close(compiled(x), expected(x))
    launched = [(made.key.rows, made.key.shape.norm, made.runs) for made in fake_gpu.made]
    assert launched == [(8, None, [5, 6]), (16, None, [9])]


def _weights(module: SwiGLU) -> tuple[Any, ...]:
    weights = module.w_up, module.w_gate, module.w_down, None, None, module.activation.value
    return *weights, module.w_norm, module.norm


def test_every_number_of_tokens_is_served_by_few_launches(fake_gpu: type[FakeLaunch]) -> None:
    up, down = linears("up", "down", bias=True)
    module = FFN.from_linears(up, down, "relu")
    with torch.inference_mode():
        for tokens in range(1, 101):
            x = torch.randn(tokens, HIDDEN)
            out = module(x)
            assert (out.shape, out.is_contiguous()) == (x.shape, True)
            torch.testing.assert_close(out, down(torch.relu(up(x))))
        batched = torch.randn(3, 7, HIDDEN)
        torch.testing.assert_close(module(batched), down(torch.relu(up(batched))))
    assert [made.key.rows for made in fake_gpu.made] == [8, 16, 32, 64, 128]
    assert sum(len(made.runs) for made in fake_gpu.made) == 101


def test_a_module_explains_what_runs(fake_gpu: type[FakeLaunch]) -> None:
    module, _ = swiglu()
    assert (module.explain(100), module.explain(101)) == (LAUNCH, LIBRARY)
    assert str(module.explain(1)) == (
        "one launch (one_launch): the launch takes 10.0 us, PyTorch's ops 12.0 us; measured"
    )
    for tokens in (0, -1):
        with pytest.raises(ArgumentError, match=rf"explain: tokens is {tokens}; give a positive number"):
            module.explain(tokens)
    with pytest.raises(ArgumentError):
        module.explain(1.5)
    assert fake_gpu.made == []


def test_a_module_without_a_gpu_explains_that() -> None:
    choice = swiglu()[0].explain(16)
    assert choice.executor is None
    assert str(choice) == ("PyTorch's own ops: tensors are on a device of type 'cpu', the kernels are for NVIDIA GPUs")


def test_what_is_prepared_is_not_built_again(fake_gpu: type[FakeLaunch]) -> None:
    module, _ = swiglu()
    module.prepare(16, 64, 128)  # of which the last runs in PyTorch's ops
    assert [made.key.rows for made in fake_gpu.made] == [16, 64]
    with torch.inference_mode():
        for tokens in (9, 16, 33, 64, 128):
            module(torch.randn(tokens, HIDDEN))
    assert len(fake_gpu.made) == 2
    with pytest.raises(ArgumentError, match="prepare: tokens is 0; give a positive number"):
        module.prepare(16, 0)


@pytest.mark.parametrize(("tokens", "launch"), [(100, True), (101, False)])
def test_torch_compile_sees_pytorchs_ops_where_they_will_run(
    tokens: int, launch: bool, fake_gpu: type[FakeLaunch]
) -> None:
    module, expected = swiglu()
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        seen.append(" ".join(str(node.target) for node in graph.graph.nodes))
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend, dynamic=False)
    x = torch.randn(tokens, HIDDEN)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), expected(x))
        assert ("interlace.ffn" in seen[-1]) == launch
        # Where the number of tokens is a symbol, what runs is chosen for each call.
        compiled = torch.compile(module, fullgraph=True, backend=backend, dynamic=True)
        before = len(fake_gpu.made)
        for some in (tokens, 90, 110):
            x = torch.randn(some, HIDDEN)
            torch.testing.assert_close(compiled(x), expected(x))
        assert "interlace.ffn" in seen[-1]
        assert len(seen) == 2
        assert len(fake_gpu.made) == max(before, 1)


def test_without_a_gpu_torch_compile_sees_pytorchs_ops_and_warns() -> None:
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        seen.append(" ".join(str(node.target) for node in graph.graph.nodes))
        return graph.forward

    module, expected = swiglu()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    xs = [torch.randn(tokens, HIDDEN) for tokens in (3, 4, 5)]
    with torch.inference_mode():
        with pytest.warns(FallbackWarning, match="a device of type 'cpu'"):
            compiled(xs[0])
        assert all(torch.equal(compiled(x), expected(x)) for x in xs)
    assert len(seen) <= 2
    assert not any("interlace.ffn" in graph for graph in seen)


# ---- instances


class FakeInstance:
    """Counts its runs instead of running."""

    def __init__(self, key: Key) -> None:
        self.key, self.is_running, self.runs, self.bound = key, False, 0, False

    def run(self, tensors: object) -> None:
        self.runs, self.bound = self.runs + 1, True

    def release(self) -> None:
        self.bound = False


KEY = Key(torch.device("cpu"), 7, 0, 16, FFNShape(HIDDEN, WIDTH, Activation.SILU, True), bf16, False)


def record_instances(limit: int = 64) -> tuple[Instances, list[FakeInstance]]:
    made: list[FakeInstance] = []

    def make(key: Key, tensors: object) -> FakeInstance:
        made.append(FakeInstance(key))
        return made[-1]

    return Instances(make, limit), made


def test_calls_share_an_instance_only_on_one_stream_and_in_one_capture() -> None:
    instances, made = record_instances()
    keys = [
        KEY,
        KEY._replace(stream=8),
        KEY._replace(capture=1),
        KEY._replace(capture=2),
        KEY._replace(capture=1, stream=8),
        KEY._replace(rows=17),
        KEY._replace(shape=replace(KEY.shape, gated=False)),
        KEY._replace(bias=True),
    ]
    for key in keys * 2:
        instances.run(key, {})
    assert [instance.key for instance in made] == keys
    assert [instance.runs for instance in made] == [2] * len(keys)
    assert not any(instance.bound for instance in made), "an instance keeps tensors alive"


def test_the_instance_used_least_recently_goes_first() -> None:
    instances, made = record_instances(limit=2)
    for m in (1, 2, 1, 3, 1, 2):  # 3 takes the place of 2, then 2 that of 3
        instances.run(KEY._replace(rows=m), {})
    assert [instance.key.rows for instance in made] == [1, 2, 3, 2]
    assert len(instances) == 2


def test_an_instance_that_runs_is_kept_beyond_the_limit() -> None:
    instances, made = record_instances(limit=2)
    instances.run(KEY._replace(rows=1), {})
    made[0].is_running = True
    for m in (2, 3, 4, 1):
        instances.run(KEY._replace(rows=m), {})
    assert [instance.key.rows for instance in made] == [1, 2, 3, 4]
    for instance in made:
        instance.is_running = True
    instances.run(KEY._replace(rows=5), {})
    assert len(instances) == 3
    for instance in made:
        instance.is_running = False
    instances.run(KEY._replace(rows=6), {})
    assert len(instances) == 2


def test_instances_of_captured_graphs_stay() -> None:
    instances, made = record_instances(limit=1)
    for number in range(1, 6):
        instances.run(KEY._replace(capture=number), {})
    for m in (1, 2, 3):
        instances.run(KEY._replace(rows=m), {})
    for number in range(1, 6):
        instances.run(KEY._replace(capture=number), {})
    assert len(made) == 5 + 3
    assert len(instances) == 5 + 1


def test_garbage_waits_until_a_capture_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture.torch.cuda, "graph", lambda graph, **options: nullcontext())
    collecting = [gc.isenabled()]

    def fail() -> None:
        with capture.capture_graph(None):  # type: ignore[arg-type]
            collecting.append(gc.isenabled())
            raise ShapeError("no")

    with pytest.raises(ShapeError, match="no"):
        fail()
    assert [*collecting, gc.isenabled()] == [True, False, True]
    gc.disable()
    try:
        with capture.capture_graph(None):  # type: ignore[arg-type]
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_failure_to_build_leaves_nothing_behind() -> None:
    def fail(key: Key, tensors: object) -> FakeInstance:
        raise ShapeError("no")

    instances = Instances(fail)
    for _ in range(2):
        with pytest.raises(ShapeError, match="no"):
            instances.run(KEY, {})
    assert len(instances) == 0


def test_an_instance_is_built_outside_of_the_callers_modes() -> None:
    """Its tensors outlive the call: they may not be inference tensors, for one."""
    modes: list[bool] = []

    def make(key: Key, tensors: object) -> FakeInstance:
        modes.append(torch.empty(1).is_inference())
        return FakeInstance(key)

    with torch.inference_mode():
        Instances(make).run(KEY, {})
    assert modes == [False]


def test_the_driver_is_asked_for_a_captures_id_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dependencies in the answer would make the driver refuse where launches overlap."""

    def info(stream, status, number, *rest) -> int:
        assert stream.value == 4711
        assert [pointer.value for pointer in rest] == [None, None, None]
        number._obj.value = 2**40 + 1
        return 0 if working else 719

    monkeypatch.setattr(capture, "_load_driver", lambda: SimpleNamespace(cuStreamGetCaptureInfo_v2=info))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=4711))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert capture.get_capture_id() == 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    working = True
    assert capture.get_capture_id() == 2**40 + 1
    working = False
    with pytest.raises(DeviceError, match="cuStreamGetCaptureInfo_v2 failed with error 719"):
        capture.get_capture_id()
