// Ticket dispatch where no op loads ahead.
#pragma once
#include "counter.cuh"
#include "waits.cuh"
#include "generated/late.cuh"

struct Tickets : Counter {
  DEVICE int take(const Launch& launch, int sent) {
    if (next < 0) {
      await_finished(launch, sent, HELD - 1);
      const int row = (int)(*(volatile unsigned long long*)launch.starts - first);
      const bool last = row < launch.count && row + (int)gridDim.x > launch.count;
      if (LAST_ALONE && last && waits_for_none(launch, row)) await_finished(launch, sent, 0);
    }
    const int row = ticket(launch);
    return row < launch.count ? row : -1;
  }
};
