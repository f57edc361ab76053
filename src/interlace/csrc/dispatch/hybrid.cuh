// Hybrid dispatch: static queues, then tickets.
#pragma once
#include "claim.cuh"
#include "waits.cuh"
#include "generated/late.cuh"

struct Tickets {
  unsigned run;
  int next, end;
  DEVICE unsigned begin(const Launch& launch) {
    next = launch.lists[blockIdx.x];
    end = launch.lists[blockIdx.x + 1];
    return run = (unsigned)(claim(launch) / launch.programs);
  }
  // Each block draws one ticket too many.
  DEVICE int take(const Launch& launch, int sent) {
    if (next < end) return next++;
    await_finished(launch, sent, HELD - 1);
    const int first = launch.lists[launch.programs], count = launch.lists[launch.programs + 1] - first;
    const unsigned drawn = run * (unsigned)(count + launch.programs);  // in runs before
    const int left = count - (int)(*(volatile unsigned*)(launch.heads + launch.programs) - drawn);
    const bool last = left > 0 && left <= launch.programs;
    if (LAST_ALONE && last && waits_for_none(launch, first + count - left)) await_finished(launch, sent, 0);
    unsigned place = 0;
    if (first_lane()) place = atomicAdd(launch.heads + launch.programs, 1u);
    place = __shfl_sync(0xffffffff, place, 0) - drawn;
    return (int)place < count ? first + (int)place : -1;
  }
  DEVICE int known() { return next < end ? next : -1; }
  DEVICE void look(const Launch& launch) {}
};
