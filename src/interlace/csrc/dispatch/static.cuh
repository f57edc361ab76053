// Static dispatch: each block runs its own queue from front to back. All blocks must be resident.
#pragma once
#include "common.cuh"

struct StaticDispatch : DispatchBase {
  int next, end;
  DEVICE unsigned begin(const Launch& launch) {
    next = launch.lists[blockIdx.x];
    end = launch.lists[blockIdx.x + 1];
    return (unsigned)(claim(launch) / launch.programs);
  }
  DEVICE int take(const Launch& launch, int sent) { return next < end ? next++ : -1; }
  DEVICE int known() { return next < end ? next : -1; }
};
