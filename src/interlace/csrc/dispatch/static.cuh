// Static dispatch: a queue for each worker.
#pragma once
#include "claim.cuh"

struct Tickets {
  int next, end;
  DEVICE unsigned begin(const Launch& launch) {
    next = launch.lists[blockIdx.x];
    end = launch.lists[blockIdx.x + 1];
    return (unsigned)(claim(launch) / launch.programs);
  }
  DEVICE int take(const Launch& launch, int sent) { return next < end ? next++ : -1; }
  DEVICE int known() { return next < end ? next : -1; }
  DEVICE void look(const Launch& launch) {}
};
