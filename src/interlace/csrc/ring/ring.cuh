// Shared memory as a ring of stages, and the messages between the roles of a block (roles.cuh).
//
// A stage has a slot of prefetchable operands (`prefetch`, such as weights) and a slot of dependent operands (`load`,
// such as activations). Each op divides these bytes as it likes. Stage n of a block lies in slot n mod STAGES, and all
// roles count the same stages for the same items, whatever the sequence of items is. So nothing is ever reset. A block
// with four stages, whose first item takes three of them and whose second item takes two:
//
//   item                        0    0    0    1    1
//   stage n                     0    1    2    3    4
//   slot                        0    1    2    3    0
//   parity of "full" awaited    0    0    0    0    1     n / STAGES mod 2
//   parity of "empty" awaited   1    1    1    1    0     the opposite, which a new barrier has passed already
//
// The loader fills stages 0 to 3 at once: weights of item 1 arrive while item 0 still waits. Stage 4 follows when stage
// 0 is released. The two slots of a stage are released separately: consumers that take weights into registers before
// the activations are there make room for more weights meanwhile.
//
// The loader sends items to the other roles in a ring of TICKETS messages. A message has the item's row of the item
// table, and the run. Message m lies in place m mod TICKETS, with parities like those of stages.
//
//   barrier          each      arrivals                                                  awaited by
//   prefetch_full    stage     loader, and the bytes of its loads                        consumers, loader
//   load_full        stage     dependent loader, and the bytes of its loads              consumers
//   prefetch_empty   stage     every consumer warp that has read the slot                loader
//   load_empty       stage     every consumer warp that has read the slot                both loaders
//   sent             message   loader                                                    all other roles
//   received         message   consumer warps, dependent loader, storer, when done       loader
//   finished         message   a thread of each consumer warpgroup, after its stores     storer
#pragma once
#include "../sentinel.cuh"
#include "generated/launch.cuh"
#include "generated/cluster.cuh"

// Data of an item's dependent loads that no wait covers. The dependent loader requests it before the waits:
// every acquire invalidates the L1, so that after a wait it would cost one more trip to the L2.
struct Given {
  int count, low, high;
  const void* rows[3];
};
struct Item : ItemRow {
  unsigned run;
  Given given;
};
constexpr int QUADS = sizeof(ItemRow) / 16;
static_assert(sizeof(ItemRow) <= 128, "a lane has a word of a row");
// Position of a role in the ring. A consumer also has the slots that it keeps until its item is posted; the loader
// knows whether it has filled `resident`.
struct Stage {
  int slot;
  unsigned phase;
  int passed = 1 << 30;          // slots to release at once, before the kept ones
  int first_kept = 0, kept = 0;  // the first slot that is kept, and how many are
  bool resident = false;
  DEVICE void advance() {
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
  // Returns the number of the stage modulo two rounds.
  DEVICE int place() const { return slot + (int)phase * STAGES; }
};

DEVICE unsigned prefetch_slot(int slot) { return SHARED_BASE + slot * PREFETCH_BYTES; }
DEVICE unsigned load_slot(int slot) { return SHARED_BASE + STAGES * PREFETCH_BYTES + slot * LOAD_BYTES; }
// The header of a stage, for what else comes with an item's first stage.
DEVICE unsigned header_at(int slot) {
  return SHARED_BASE + STAGES * (PREFETCH_BYTES + LOAD_BYTES) + slot * HEADER_BYTES;
}
DEVICE unsigned scratch_of(int group) { return SHARED_BASE + RING_BYTES + group * SCRATCH_BYTES; }
// Numbers that the loader asks for once in a launch, and keeps.
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
// Words from another block of the cluster (dispatch/cluster_ticket.cuh), and their barriers.
DEVICE unsigned heard(int word) { return barriers() + (4 * STAGES + 3 * TICKETS + word) * 8; }
DEVICE unsigned word_at(int word) { return heard(WORDS + word); }
// A message begins with the item's row of the table.
DEVICE unsigned message_at(int message) { return messages() + message * MESSAGE_BYTES; }
// Then come the run, whether there is an item, and the position of its first stage.
DEVICE unsigned last_of(int message) { return message_at(message) + (int)sizeof(ItemRow); }
// Then come the first slot that its consumers keep, with their number in the upper half, and the positions of up to
// three consumer warpgroups after the item.
DEVICE unsigned kept_at(int message) { return message_at(message) + MESSAGE_BYTES - 16; }

// Waits within a block have no clock: the storer has one (`await_watched`) and waits as long as any other role. So each
// wait is four instructions instead of thirty, and the code of a layer's ops stays in the instruction cache.
DEVICE void await(unsigned barrier, unsigned parity) {
#pragma unroll 1
  while (!mbarrier_try_wait(barrier, parity)) {}
}

// Returns a value that the compiler knows to be equal in all lanes, as uniform registers of some instructions must be.
DEVICE unsigned uniform(unsigned value) { return __shfl_sync(0xffffffff, value, 0); }
// Returns the operands of an item's op. Copy what is used more than once: for all that the compiler knows, any store
// may change them.
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
// Called by a warp: awaits rows `first` to `end` of the wait table, up to 32 at once, because one answer takes as long
// as 32. Each row gets a power of two of lanes, which share its semaphores; then all lanes synchronise.
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
// Called by a warp: returns the end of the waits from `wait` on that stand at `k`, of at most 32.
DEVICE int waits_before(const Launch& launch, const Item& item, int wait, int k) {
  const int row = wait + threadIdx.x % 32;
  return wait + __popc(__ballot_sync(0xffffffff, row < item.wait_hi && load_row(launch.waits + row).k == k));
}
// Returns the item of a message.
DEVICE Item item_of(int message, unsigned run) {
  int4 quads[QUADS];
#pragma unroll
  for (int q = 0; q < QUADS; ++q) quads[q] = load_shared_128(message_at(message) + q * 16);
  Item item;
  unpack(item, quads);
  item.run = run;
  return item;
}
// Returns a lane's word of a row of the item table.
DEVICE int word_of(const Launch& launch, int row) {
  return reinterpret_cast<const int*>(launch.items + row)[threadIdx.x % 32 % (QUADS * 4)];
}
// Called by a warp at `stage`: sends the other roles the item of a row, or that there is none. Returns the item.
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
// Called by a warp: waits until at most `held` of the items that were sent are unfinished.
DEVICE void await_finished(const Launch& launch, int sent, int held) {
  const int last = sent - held - 1;
  if (last >= 0) await(received(last % TICKETS), last / TICKETS & 1);
}
// Called by whole warps: receives message n. Returns false if it has no item. `place` is the position of its first
// stage.
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
// Called by a warp: waits until the slot of the next stage is free and fewer than `in_flight` prefetches are in flight.
// All lanes must have seen that before the stage may fill: a stage of no bytes is full, and free again, at once.
DEVICE void open_prefetch(const Stage& stage, int n, int in_flight, unsigned bytes) {
  await(prefetch_empty(stage.slot), stage.phase ^ 1);
  if (in_flight < STAGES && n >= in_flight) {
    const int earlier = n - in_flight;
    await(prefetch_full(earlier % STAGES), earlier / STAGES & 1);
  }
  __syncwarp();
  if (first_lane()) mbarrier_arrive_expect_tx(prefetch_full(stage.slot), bytes);
}
// Called by a warp that opened all stages of an item: under CLAIMS_AHEAD, waits until the item has begun, `stage` being
// its first one. Consumers have then released that stage's slot of dependent operands, which is never kept.
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
// Returns whether the item is a part of a tile that leaves its partial sums to the part that is last in the plan's
// sequence, and posts that they are there, which makes that part ready (megakernel/partials.py).
DEVICE bool leaves_sums(const Item& item) { return item.parts > 1 && item.split >= 0; }
// A fence waits for all bulk loads in flight on its SM: 0.5 us without any, 2.5 us with 64 KiB
// (benchmarks/notes/memory-order.md). So an item that others wait for, and that is its worker's last one of its op,
// keeps its last slots until it is posted. Such an item of `stages` stages calls this before it releases the first
// slot. It takes `early` of its slots before its waits; their loads have landed long before the post. A part of a tile
// that has two or more other parts also waits for their partial sums, which takes longer than the fence; it lets half a
// ring fill meanwhile.
DEVICE void keep_last(const Item& item, Stage& stage, int stages, int early = 0) {
  if (item.code & KEEPS) stage.passed = max(stages - (item.parts > 2 && !leaves_sums(item) ? STAGES / 2 : KEPT), early);
}
// These release the slots of a stage, in the order of the ring.
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
// Called by the dependent loader: fills `item.given` if the op has `look_ahead`.
template <class BODY>
DEVICE auto look_as(const Launch& launch, Item& item, int) -> decltype(BODY::look_ahead(launch, item)) {
  return BODY::look_ahead(launch, item);
}
template <class BODY> DEVICE void look_as(const Launch& launch, Item& item, long) {}
DEVICE int warpgroup() { return threadIdx.x / 128; }
DEVICE void synchronise() { named_barrier(1 + warpgroup(), 128); }
// Called by a consumer warpgroup after an item's last store: hands the item to the storer. The scratch is free then.
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
