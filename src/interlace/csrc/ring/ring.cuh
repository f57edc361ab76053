// Shared-memory ring, messages between roles, waits of items (megakernel/walk.py).
#pragma once
#include "../sentinel.cuh"
#include "generated/launch.cuh"
#include "../cluster/alone.cuh"

// What an item's dependent loads take that its waits are not for. The loader asks for it before them: every acquire
// empties the nearest cache, so that behind a wait it would be one more trip to the L2.
struct Given {
  int count;
  const void* rows[3];
};
struct Item : ItemRow {
  unsigned run;
  Given given;
};
constexpr int QUADS = sizeof(ItemRow) / 16, MESSAGE_BYTES = sizeof(ItemRow) + 32;
static_assert(sizeof(ItemRow) <= 128, "a lane has a word of a row");
// Where a role is in the ring; of a consumer also which slots it keeps until its item is posted, and of the loader that
// draws whether it has filled `resident`.
struct Stage {
  int slot;
  unsigned phase;
  int passed = 1 << 30, first_kept = 0, kept = 0;  // slots that are handed back first; those kept, and where they begin
  bool resident = false;
  DEVICE void advance() {
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
  // Modulo two rounds.
  DEVICE int place() const { return slot + (int)phase * STAGES; }
};

DEVICE unsigned prefetch_slot(int slot) { return SHARED_BASE + slot * PREFETCH_BYTES; }
DEVICE unsigned load_slot(int slot) { return SHARED_BASE + STAGES * PREFETCH_BYTES + slot * LOAD_BYTES; }
// Beside the slots of a stage, for what else comes with an item's first one.
DEVICE unsigned header_at(int slot) {
  return SHARED_BASE + STAGES * (PREFETCH_BYTES + LOAD_BYTES) + slot * HEADER_BYTES;
}
DEVICE unsigned scratch_of(int group) { return SHARED_BASE + RING_BYTES + group * SCRATCH_BYTES; }
// Numbers that the loader that draws asks for once in a launch, and keeps.
DEVICE int* resident() { return reinterpret_cast<int*>(shared_memory + RING_BYTES + WARPGROUPS * SCRATCH_BYTES); }
DEVICE unsigned messages() { return SHARED_BASE + RING_BYTES + WARPGROUPS * SCRATCH_BYTES + RESIDENT_BYTES; }
DEVICE unsigned barriers() { return messages() + TICKETS * MESSAGE_BYTES; }
DEVICE unsigned prefetch_full(int slot) { return barriers() + slot * 8; }
DEVICE unsigned load_full(int slot) { return barriers() + (STAGES + slot) * 8; }
DEVICE unsigned prefetch_empty(int slot) { return barriers() + (2 * STAGES + slot) * 8; }
DEVICE unsigned load_empty(int slot) { return barriers() + (3 * STAGES + slot) * 8; }
DEVICE unsigned sent(int message) { return barriers() + (4 * STAGES + message) * 8; }
DEVICE unsigned received(int message) { return barriers() + (4 * STAGES + TICKETS + message) * 8; }
DEVICE unsigned finished(int message) { return barriers() + (4 * STAGES + 2 * TICKETS + message) * 8; }
// Words from another block of the cluster (``megakernel/cluster``), and their barriers.
DEVICE unsigned heard(int word) { return barriers() + (4 * STAGES + 3 * TICKETS + word) * 8; }
DEVICE unsigned word_at(int word) { return heard(WORDS + word); }
// A message: the item's row of the table.
DEVICE unsigned message_at(int message) { return messages() + message * MESSAGE_BYTES; }
// Then the run; whether there is an item; the place of its first stage.
DEVICE unsigned last_of(int message) { return message_at(message) + (int)sizeof(ItemRow); }
// Behind it: the first slot that its consumers keep, and in the upper half how many; then the places of up to three
// warpgroups of consumers behind the item.
DEVICE unsigned kept_at(int message) { return message_at(message) + MESSAGE_BYTES - 16; }

// Whoever waits for others of the block waits without a clock: the warp that posts has one (``await_watched``), and
// waits for as long as any of them. So a wait is four instructions and not thirty, wherever there is one, and what the
// ops of a layer go through stays in the instruction cache.
DEVICE void await(unsigned barrier, unsigned parity) {
#pragma unroll 1
  while (!mbarrier_try_wait(barrier, parity)) {}
}

// Equal in all lanes, and known to the compiler to be so: what some instructions take from uniform registers.
DEVICE unsigned uniform(unsigned value) { return __shfl_sync(0xffffffff, value, 0); }
// The operands of an item's op. What is used more than once is copied first: for all that the compiler knows, a store
// may change the table.
template <class T> DEVICE const T& operands_of(const Launch& launch, const Item& item) {
  return *reinterpret_cast<const T*>(launch.operands + uniform(item.op) * OPERAND_BYTES);
}
DEVICE bool first_lane() { return threadIdx.x % 32 == 0; }
DEVICE int4 load_shared_128(unsigned at) {
  int4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
DEVICE int load_shared_word(unsigned at) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
  return (int)word;
}
DEVICE void store_shared_word(unsigned at, int word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(word) : "memory");
}
DEVICE void store_shared_128(unsigned at, int4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// Waits `first` to `end` of an item, by a warp: all at once, as one answer comes no sooner than 32. Lanes are dealt to
// rows, a power of two to each, and a row's semaphores to its lanes; then all synchronise.
DEVICE void await_rows(const Launch& launch, const Item& item, int first, int end) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (; first < end; first += 32) {
    const int shift = __clz(min(end - first, 32) - 1) - 27, lanes = 1 << shift;  // 32 lanes for one row, 1 for over 16
    const int row = first + (lane >> shift);
    if (row < end) await_posts(launch, item, load_row(launch.waits + row), lane % lanes, lanes, 32);
    __syncwarp();
  }
}
// By a warp: the end of the waits from `wait` on that stand before `k`, or of 32 of them.
DEVICE int waits_before(const Launch& launch, const Item& item, int wait, int k) {
  const int row = wait + threadIdx.x % 32;
  return wait + __popc(__ballot_sync(0xffffffff, row < item.wait_hi && load_row(launch.waits + row).k == k));
}
// The item of a message.
DEVICE Item item_of(int message, unsigned run) {
  int4 quads[QUADS];
#pragma unroll
  for (int q = 0; q < QUADS; ++q) quads[q] = load_shared_128(message_at(message) + q * 16);
  Item item;
  unpack(item, quads);
  item.run = run;
  return item;
}
// A lane's word of a row of the item table.
DEVICE int word_of(const Launch& launch, int row) {
  return reinterpret_cast<const int*>(launch.items + row)[threadIdx.x % 32 % (QUADS * 4)];
}
// To the other roles, by a warp that is at `stage`: the item of a row, or that there is none. Returns the item.
DEVICE Item send(const Launch& launch, int n, int word, unsigned run, bool any, const Stage& stage) {
  const int message = n % TICKETS, lane = threadIdx.x % 32;
  await(received(message), (n / TICKETS & 1) ^ 1);
  if (lane < QUADS * 4) store_shared_word(message_at(message) + lane * 4, word);
  if (lane == 0) store_shared_128(last_of(message), make_int4((int)run, any, stage.place(), 0));
  __syncwarp();
  const Item item = item_of(message, run);
  if (lane == 0) mbarrier_arrive(sent(message));
  return item;
}
// By a warp: until all but so many of the items that were sent are finished.
DEVICE void await_finished(const Launch& launch, int sent, int held) {
  const int last = sent - held - 1;
  if (last >= 0) await(received(last % TICKETS), last / TICKETS & 1);
}
// By whole warps; false if there is none. `place` is that of its first stage.
DEVICE bool receive(const Launch& launch, int n, Item& item, int& place) {
  const int message = n % TICKETS;
  await(sent(message), n / TICKETS & 1);
  const int4 last = load_shared_128(last_of(message));
  item = item_of(message, (unsigned)last.x);
  place = last.z;
  __syncwarp();
  if (first_lane()) mbarrier_arrive(received(message));
  return last.y;
}
// By a warp: the slot of the next stage is free, and fewer than in_flight independent loads are under way.
// All lanes have seen so before the stage may fill: a stage of no bytes is full, and free again, at once.
DEVICE void open_prefetch(const Stage& stage, int n, int in_flight, unsigned bytes) {
  await(prefetch_empty(stage.slot), stage.phase ^ 1);
  if (in_flight < STAGES && n >= in_flight) {
    const int earlier = n - in_flight;
    await(prefetch_full(earlier % STAGES), earlier / STAGES & 1);
  }
  __syncwarp();
  if (first_lane()) mbarrier_arrive_expect_tx(prefetch_full(stage.slot), bytes);
}
// By a warp that opened all stages of an item, of which this is the first: it has begun, where whoever draws would have
// others meanwhile. Of a stage's slots that for tokens is handed back by then, and not kept.
DEVICE void await_begin(const Stage& stage) {
  if (CLAIMS_AHEAD) await(load_empty(stage.slot), stage.phase);
}
DEVICE void open_load(const Stage& stage, unsigned bytes) {
  await(load_empty(stage.slot), stage.phase ^ 1);
  __syncwarp();
  if (first_lane()) mbarrier_arrive_expect_tx(load_full(stage.slot), bytes);
}
DEVICE void await_stage(const Stage& stage) {
  await(load_full(stage.slot), stage.phase);
  await(prefetch_full(stage.slot), stage.phase);
}
// Whether the item is a part of a tile that leaves its sums for the part that is last in the plan's sequence, and posts
// that they are there, by which that part becomes ready (``megakernel/sums``).
DEVICE bool leaves_sums(const Item& item) { return item.parts > 1 && item.split >= 0; }
// A fence waits for all bulk loads that are under way in its SM: 0.5 us without any, 2.5 with 64 KiB
// (docs/memory-order.md). So the last slots of an item that others wait for, while this worker has nothing more of its
// op, are handed back when it is posted. An item of `stages` says so before it hands back the first; `early` are those
// of its slots that it takes before its waits, whose loads have landed long before its post. A part of a tile that two
// others or more share waits for their sums too, which takes longer than what a fence waits for, and fills half a ring
// meanwhile.
DEVICE void keep_last(const Item& item, Stage& stage, int stages, int early = 0) {
  if (item.code & KEEPS) stage.passed = max(stages - (item.parts > 2 && !leaves_sums(item) ? STAGES / 2 : KEPT), early);
}
// A stage's slots, in the order of the ring: that of independent operands and that of dependent ones.
DEVICE void release_prefetch(Stage& stage, int slot) {
  if (stage.passed-- > 0) {
    hand_back_prefetch(slot);
  } else if (!stage.kept++) {
    stage.first_kept = slot;
  }
}
DEVICE void release_load(int slot) { hand_back_load(slot); }
DEVICE void release(Stage& stage, int slot) {
  release_prefetch(stage, slot);
  release_load(slot);
}
// By the loader that waits: of bodies that look ahead, what they find (``Given``).
template <class BODY>
DEVICE auto look_as(const Launch& launch, Item& item, int) -> decltype(BODY::look_ahead(launch, item)) {
  return BODY::look_ahead(launch, item);
}
template <class BODY> DEVICE void look_as(const Launch& launch, Item& item, long) {}
DEVICE int warpgroup() { return threadIdx.x / 128; }
DEVICE void synchronise() { named_barrier(1 + warpgroup(), 128); }
// By a warpgroup of consumers, behind an item's last store: to the warp that posts. Behind it the scratch is free.
DEVICE void hand_over(const Launch& launch, const Item& item, Stage& stage, int n) {
  if (threadIdx.x % 128 == 0 && item.post >= 0 && !leaves_sums(item)) launch.done[item.number] = (int)(item.run + 1);
  if (threadIdx.x == 0) store_shared_word(kept_at(n % TICKETS), stage.first_kept | stage.kept << 16);
  if (threadIdx.x % 128 == 0) store_shared_word(kept_at(n % TICKETS) + 4 + warpgroup() * 4, stage.place());
  stage.passed = 1 << 30, stage.kept = 0;
  synchronise();
  if (threadIdx.x % 128 == 0) mbarrier_arrive(finished(n % TICKETS));
}
DEVICE void launch_dependents() {
  if (DEPENDENT_LAUNCH) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
DEVICE void await_launch_before() {
  if (DEPENDENT_LAUNCH) asm volatile("griddepcontrol.wait;" ::: "memory");
}
