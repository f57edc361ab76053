// Ticket dispatch: blocks claim items in the plan's sequence from one counter.
//
// Items wait only for smaller tickets, and a block runs its items in order. So the holder of the smallest unfinished
// ticket never waits for an unfinished item, and there is progress for any number of blocks.
#pragma once
#include "common.cuh"

struct TicketDispatch : TicketCounter {
  DEVICE int take(const Launch& launch, int sent) {
    const int row = ticket(launch);
    return row < launch.count ? row : -1;
  }
};
// The same where no op has anything to load ahead.
struct LateTicketDispatch : TicketCounter {
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
