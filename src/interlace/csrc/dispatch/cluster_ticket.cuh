// Ticket dispatch to thread block clusters (cluster/cluster.cuh): a ticket is of a group of items, one for each block.
//
// The first block of a cluster claims the tickets. It sends each other block its row and the run, in a word from shared
// memory to shared memory. The first block claims the next ticket when it has opened a stage of each group before. By
// then the other blocks have received all words but those of the last STAGES stages. So a ring of STAGES + 1 words is
// enough, and no block acknowledges a word.
#pragma once
#include "common.cuh"
#include "../cluster/cluster.cuh"

struct ClusterTicketDispatch : TicketCounter {
  unsigned run;
  int told;  // words that this block has sent or received
  DEVICE unsigned begin(const Launch& launch) {
    told = 0;
    if (rank() == 0) return run = TicketCounter::begin(launch);
    in_sight = 0;
    next = hear();
    return run;
  }
  DEVICE int take(const Launch& launch, int sent) {
    if (rank() == 0) {
      const int group = ticket(launch), row = group < launch.count ? group * CLUSTER : -1;
      tell(row);
      return row;
    }
    return sent ? hear() : next;
  }
  DEVICE void look(const Launch& launch) {
    if (rank() == 0) TicketCounter::look(launch);
  }
  // Called by a warp: each lane sends one block its row and the run.
  DEVICE void tell(int row) {
    const unsigned word = told % WORDS, lane = threadIdx.x % 32;
    if (lane > 0 && lane < CLUSTER) {
      const unsigned long long value = (unsigned long long)run << 32 | (unsigned)(row < 0 ? row : row + (int)lane);
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                       of_block(word_at(word), lane)),
                   "l"(value), "r"(of_block(heard(word), lane))
                   : "memory");
    }
    ++told;
  }
  // Called by a warp: awaits the next word and returns its row.
  DEVICE int hear() {
    const unsigned word = told % WORDS, parity = told / WORDS & 1;
    if (threadIdx.x % 32 == 0) mbarrier_arrive_expect_tx(heard(word), 8);
    unsigned done;
#pragma unroll 1
    do {
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
          "selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(heard(word)), "r"(parity)
          : "memory");
    } while (!done);
    unsigned long long value;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(value) : "r"(word_at(word)) : "memory");
    ++told;
    run = (unsigned)(value >> 32);
    return __shfl_sync(0xffffffff, (int)value, 0);
  }
};
