// Stages of an item as its consumers see them.
#pragma once
#include "ring.cuh"

// By each warp.
struct Passage {
  Stage& stage;
  DEVICE void next() {
    // An answer takes as long as all that is done with few rows, so both questions are asked at once.
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
