// Hybrid dispatch: each block runs its own queue; the last items of the sequence are in one shared queue and follow all
// others. Blocks claim these by ticket, in sequence. All blocks must be resident.
#pragma once
#include "common.cuh"

struct HybridDispatch : DispatchBase {
  unsigned run;
  int next, end;
  DEVICE unsigned begin(const Launch& launch) {
    next = launch.lists[blockIdx.x];
    end = launch.lists[blockIdx.x + 1];
    return run = (unsigned)(claim(launch) / launch.programs);
  }
  // `launch.heads[launch.programs]` counts tickets of all runs. Each block claims one that has no item.
  DEVICE int take(const Launch& launch, int sent) {
    if (next < end) return next++;
    await_finished(launch, sent, HELD - 1);
    const int first = launch.lists[launch.programs], count = launch.lists[launch.programs + 1] - first;
    const unsigned drawn = run * (unsigned)(count + launch.programs);  // tickets of earlier runs
    const int left = count - (int)(*(volatile unsigned*)(launch.heads + launch.programs) - drawn);
    const bool last = left > 0 && left <= launch.programs;
    if (LAST_ALONE && last && waits_for_none(launch, first + count - left)) await_finished(launch, sent, 0);
    unsigned place = 0;
    if (first_lane()) place = atomicAdd(launch.heads + launch.programs, 1u);
    place = __shfl_sync(0xffffffff, place, 0) - drawn;
    return (int)place < count ? first + (int)place : -1;
  }
  DEVICE int known() { return next < end ? next : -1; }
};
