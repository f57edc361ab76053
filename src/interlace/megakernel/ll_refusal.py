"""The error for tensors that ``RunOptions.ll_tensors`` names although they cannot use the LL protocol."""

from __future__ import annotations

from collections.abc import Collection

from interlace.core.errors import PlanError
from interlace.kernels.bodies import NO_CLUSTER
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Dispatch, Plan

#: Dispatches that allow LL hand-off: items are taken in the plan's order, whether or not they wait.
LL_DISPATCHES = (Dispatch.STATIC, Dispatch.TICKET)


def make_ll_refusal(plan: Plan, options: RunOptions, missing: Collection[str]) -> PlanError:
    """Return the error for named tensors that cannot be LL words: the first reason, and the tensors it applies to."""
    graph, names = plan.graph, sorted(missing)
    unknown = [name for name in names if name not in {tensor.name for tensor in graph.tensors}]
    outside = [name for name in names if name in {*graph.inputs, *graph.outputs}]
    if unknown:
        names, why = unknown, f"graph {graph.name!r} has none of these names; leave them out of RunOptions.ll_tensors"
    elif outside:
        names, why = (
            outside,
            "inputs and outputs are seen from outside, as tensors; leave them out of RunOptions.ll_tensors",
        )
    elif plan.dispatch not in LL_DISPATCHES:
        name = plan.dispatch.value
        why = f"it has {name} dispatch; plan for static or ticket dispatch, or leave out RunOptions.ll_tensors"
    elif options.cluster != NO_CLUSTER:
        why = "blocks that load for one another take no words; leave out RunOptions.cluster or RunOptions.ll_tensors"
    else:
        why = (
            "who writes one and who reads it must be able to, whole tiles of one op each; leave them out of "
            "RunOptions.ll_tensors"
        )
    return PlanError(f"tensors {names} cannot be words of this plan: {why}")
