"""The measured search without a GPU: what it would try, and how the command fails."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from interlace.bench.hopper import ROWS
from interlace.cli import app
from interlace.executors.hopper import default_pipeline
from interlace.kernels.matmul import Activation
from interlace.plan.verify import verify
from interlace.tune import candidates
from interlace.workloads.ffn import MODELS, FFNShape
from interlace.workloads.hopper import HopperSetting, fits, hopper_plan, hopper_setting

SMS = 132
CASES = [(ROWS[name].shape, m) for name, m in (("relu", 16), ("relu", 128), ("swiglu", 64), ("relu", 1024))]


@pytest.mark.parametrize("name", ROWS)
def test_candidates_are_a_bounded_set_that_fits_with_the_default_first(name: str) -> None:
    shape = ROWS[name].shape
    for m in ROWS[name].ms:
        found = candidates(m, shape, SMS)
        assert found[0] == hopper_setting(m, shape)
        assert len(set(found)) == len(found)
        assert 10 <= len(found) <= 150
        assert all(fits(m, shape, setting) for setting in found)
        assert [HopperSetting.from_data(setting.to_data()) for setting in found] == list(found)


def test_candidates_differ_in_all_that_may_matter() -> None:
    shape = ROWS["relu"].shape
    few, many = candidates(16, shape, SMS), candidates(1024, shape, SMS)
    for field in ("n", "k", "split_up", "split_down", "in_flight"):
        assert len({getattr(setting, field) for setting in few}) > 1, field
    for field in ("m", "n", "k", "split_down", "group"):
        assert len({getattr(setting, field) for setting in many}) > 1, field
    assert {setting.swap for setting in few} == {True}
    assert {setting.swap for setting in many} == {False}


@pytest.mark.parametrize(
    ("shape", "m"), [*CASES, (MODELS["minilm"], 100), (FFNShape(64, 48, Activation.RELU, False), 5)]
)
def test_every_candidate_has_a_safe_plan_and_a_ring_of_three_stages(shape: FFNShape, m: int) -> None:
    for setting in candidates(m, shape, SMS):
        plan = hopper_plan(m, shape, setting, workers=SMS)
        assert verify(plan).in_sequence
        pipeline = default_pipeline(plan.graph.ops)
        assert pipeline.stages >= 3
        assert pipeline.shares == setting.shares


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--m", "16"], 1, "torch sees no CUDA GPU"),
        (["--model", "llama3-8b", "--activation", "relu"], 2, "error: a gated FFN uses silu, not relu"),
        (["--m", "0"], 2, "--m"),
        (["--json", "no/such/folder.json"], 2, "does not exist; make it first"),
    ],
)
def test_tune_fails_clearly(arguments: list[str], code: int, message: str) -> None:
    if code == 1 and pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    result = CliRunner().invoke(app, ["tune", "ffn", *arguments])
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", " ").split())
