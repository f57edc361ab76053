"""Blocks of a cluster, as CUDA C++: rings side by side, and what several blocks need alike loaded once for all.

Blocks of a cluster take items in groups, one each: of one op and the same part of the reduction, a rectangle of tiles.
Tiles of a column need the same weights, tiles of a row the same tokens (``executors/clusters`` checks all this). So all
open the same stages, item after item, and stage ``n`` of one is stage ``n`` of the others. Of what several blocks need
each loads its share of the rows, by a multicast into the same place of their rings, which completes ``full`` there:

    full     expects the bytes of all shares. Those of another block may come before this one has said how many there
             will be; the phase does not end before it has
    empty    counts the consumers of all blocks, of a slot of tokens of those of the row, who hand a slot back to each
             of them. So whoever finds a slot empty may write to that slot of all that need the same, and where it is
             empty for the next round, ``full`` has ended this one

What its item waits for each block awaits for itself, before it loads its share of tokens. A group is done when the last
of it is: it makes progress as one item does if none of it waits for what comes behind its first in the plan's sequence,
which is checked too.

No block begins before the barriers of all are there, and none ends before all have done with its barriers and its ring.

Tickets are drawn by the first block, one for each group: it tells the others the row, in words that go from shared
memory to shared memory. It takes the next item when it has opened a stage of each before, and then the others have
heard of all items but those of the last STAGES stages: so STAGES + 1 words are enough, and nobody hands them back.

Hand-overs of slots tell that reads are over, and of nothing that was written: they need no order beyond the block's.
"""

from __future__ import annotations

from interlace.kernels.bodies import ALONE, Cluster

#: Of the walk.
_BARRIERS = r"""
DEVICE unsigned independent_empty(int slot);
DEVICE unsigned dependent_empty(int slot);
DEVICE bool first_lane();
"""
#: Of a launch without clusters, the same functions.
_ALONE = r"""
enum { CLUSTER = 1, CLUSTER_ROWS = 1, CLUSTER_COLUMNS = 1, WORDS = 0 };
DEVICE void hand_back_independent(int slot) {
  if (first_lane()) mbarrier_arrive(independent_empty(slot));
}
DEVICE void hand_back_dependent(int slot) {
  if (first_lane()) mbarrier_arrive(dependent_empty(slot));
}
DEVICE void hand_back_kept(int slot) { mbarrier_arrive_many(independent_empty(slot), WARPGROUPS * 4); }
template <bool TOKENS> DEVICE int rows_before(int rows) { return 0; }
template <bool TOKENS> DEVICE void load_share(unsigned target, const TensorMap& map, int x, int y, unsigned full) {
  if (TOKENS) tma_load_2d(target, map, x, y, full);
  else tma_load_2d(target, map, x, y, full, evict_first());
}
DEVICE void begin_together() { __syncthreads(); }
DEVICE void end_together() {}
"""

_CLUSTERED = r"""
enum { WORDS = STAGES + 1 };
DEVICE unsigned rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The address of another block's shared memory that lies there as this one lies here.
DEVICE unsigned of_block(unsigned address, unsigned block) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// By a warp, to each block by a lane: a slot of weights to all, one of tokens to those of the row.
DEVICE void hand_back_to(unsigned empty, unsigned first, unsigned count) {
  const unsigned lane = threadIdx.x % 32;
  if (lane < count)
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(of_block(empty, first + lane)) : "memory");
}
DEVICE void hand_back_independent(int slot) { hand_back_to(independent_empty(slot), 0, CLUSTER); }
DEVICE void hand_back_dependent(int slot) {
  if (CLUSTER_COLUMNS > 1) {
    hand_back_to(dependent_empty(slot), rank() / CLUSTER_COLUMNS * CLUSTER_COLUMNS, CLUSTER_COLUMNS);
  } else if (first_lane()) {
    mbarrier_arrive(dependent_empty(slot));
  }
}
DEVICE void hand_back_kept(int slot) {
#pragma unroll
  for (unsigned block = 0; block < CLUSTER; ++block)
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0], %1;"
                 ::"r"(of_block(independent_empty(slot), block)), "r"(WARPGROUPS * 4) : "memory");
}
// Of some rows of tokens or weights, that so many blocks need, those before this block's share.
template <bool TOKENS> DEVICE int rows_before(int rows) {
  constexpr int SHARES = TOKENS ? CLUSTER_COLUMNS : CLUSTER_ROWS;
  if (SHARES == 1) return 0;
  const int place = TOKENS ? rank() % CLUSTER_COLUMNS : rank() / CLUSTER_COLUMNS;
  return __shfl_sync(0xffffffff, place * (rows / SHARES), 0);
}
// A box, for all blocks that need it.
template <bool TOKENS>
DEVICE void load_share(unsigned target, const TensorMap& map, int x, int y, unsigned full) {
  const unsigned long long policy = TOKENS ? evict_normal() : evict_first();
  if ((TOKENS ? CLUSTER_COLUMNS : CLUSTER_ROWS) == 1) return tma_load_2d(target, map, x, y, full, policy);
  unsigned blocks = 0;
  if (TOKENS) blocks = ((1u << CLUSTER_COLUMNS) - 1) << rank() / CLUSTER_COLUMNS * CLUSTER_COLUMNS;
  else
    for (unsigned row = 0; row < CLUSTER_ROWS; ++row)
      blocks |= 1u << (row * CLUSTER_COLUMNS + rank() % CLUSTER_COLUMNS);
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;"
      ::"r"(target), "l"(&map), "r"(x), "r"(y), "r"(full), "h"((unsigned short)blocks), "l"(policy) : "memory");
}
DEVICE void synchronise_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
DEVICE void begin_together() { synchronise_cluster(); }
DEVICE void end_together() { synchronise_cluster(); }
"""


def text(cluster: Cluster) -> str:
    """What stands before the walk."""
    if cluster == ALONE:
        return _BARRIERS + _ALONE
    head = f"enum {{ CLUSTER_ROWS = {cluster.rows}, CLUSTER_COLUMNS = {cluster.columns}, CLUSTER = {cluster.blocks} }};"
    return f"{_BARRIERS}{head}{_CLUSTERED}"


#: In place of tickets of each block (``launch/dispatch``): behind the counter, and behind the walk.
TICKETS = r"""
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
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
                   ::"r"(of_block(word_at(word), lane)), "l"(value), "r"(of_block(heard(word), lane)) : "memory");
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
          : "=r"(done) : "r"(heard(word)), "r"(parity) : "memory");
    } while (!done);
    unsigned long long value;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(value) : "r"(word_at(word)) : "memory");
    ++told;
    run = (unsigned)(value >> 32);
    return __shfl_sync(0xffffffff, (int)value, 0);
  }
};
"""
