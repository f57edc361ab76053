// Stages of an item as its consumers see them, whichever of the two slots has bytes.
#pragma once
#include "ring.cuh"

// Called by each consumer warp.
struct Passage {
  Stage& stage;
  DEVICE void next() {
    // A try takes as long as all work on a few rows, so both barriers are tried at once.
    const bool dependent = mbarrier_try_wait(load_full(stage.slot), stage.phase);
    const bool independent = mbarrier_try_wait(prefetch_full(stage.slot), stage.phase);
    if (!dependent || !independent) await_stage(stage);
  }
  DEVICE void done() {
    __syncwarp();
    release(stage, stage.slot);
    stage.advance();
  }
};
