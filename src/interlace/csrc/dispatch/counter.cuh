// Ticket counter of runs and items.
#pragma once
#include "claim.cuh"

struct Counter {
  unsigned long long first;  // of this run
  unsigned long long in_sight;
  int next;  // row of the next item, -1 while it is not drawn
  DEVICE unsigned begin(const Launch& launch) {
    const unsigned long long ticket = claim(launch), run = ticket / launch.programs;
    first = run * launch.programs;
    in_sight = 0;
    next = (int)(ticket - first);
    return (unsigned)run;
  }
  // The next ticket, from 0 in each run.
  DEVICE int ticket(const Launch& launch) {
    const int number = next >= 0 ? next : (int)(claim(launch) - first);
    next = -1;
    return number;
  }
  DEVICE int known() { return -1; }
  // A ticket drawn late balances the load. But once others have drawn all items, this block's next ticket is none
  // whenever it is drawn, and the sooner all blocks know, the sooner the next launch may begin.
  DEVICE void look(const Launch& launch) {
    if (!DEPENDENT_LAUNCH || next >= 0) return;
    if (__shfl_sync(0xffffffff, in_sight, 0) >= first + launch.count) {
      next = (int)(claim(launch) - first);
      launch_dependents();
    }
    in_sight = *(volatile unsigned long long*)launch.starts;
  }
};
