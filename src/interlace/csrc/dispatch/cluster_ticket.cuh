// Ticket dispatch to thread block clusters.
#pragma once

struct Tickets : Counter {
  unsigned run;
  int told;  // words so far, of this block or to it
  DEVICE unsigned begin(const Launch& launch) {
    told = 0;
    if (rank() == 0) return run = Counter::begin(launch);
    in_sight = 0;
    next = hear();
    return run;
  }
  // A ticket is of a group.
  DEVICE int take(const Launch& launch, int sent) {
    if (rank() == 0) {
      const int group = ticket(launch), row = group < launch.count ? group * CLUSTER : -1;
      tell(row);
      return row;
    }
    return sent ? hear() : next;
  }
  DEVICE void look(const Launch& launch) {
    if (rank() == 0) Counter::look(launch);
  }
  // By a warp: to a lane's block its row and the run.
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
