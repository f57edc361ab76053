// Push spawned items to the queue.
#pragma once
#include "tickets.cuh"

// By a warp: what an item wants comes to the queue. Returns the place of what does not fit there, -1 if all does.
DEVICE int spawn(const Launch& launch, const Item& item) {
  const Queue& queue = launch.queue;
  const int* const* const tensors = reinterpret_cast<const int* const*>(launch.operands + queue.ops * OPERAND_BYTES);
  const int end = queue.children[item.number + 1];
  int beyond = -1;
#pragma unroll 1
  for (int n = queue.children[item.number]; n < end; n += 32) {
    const int child = n + threadIdx.x % 32;
    const bool wanted = child < end && load_relaxed(tensors[queue.tensors[child]] + queue.elements[child]) != 0;
    const unsigned some = __ballot_sync(0xffffffff, wanted);
    const int count = __popc(some);
    if (!count) continue;
    expect(launch, item.run, count);
    if (first_lane()) random_delay(launch, item, 2);
    unsigned place = 0;
    if (first_lane()) place = atomicAdd(counter_of(launch, item.run, TAIL), (unsigned)count);
    place = __shfl_sync(0xffffffff, place, 0) + __popc(some & ((1u << threadIdx.x % 32) - 1));
    if (!wanted) continue;
    if (place < (unsigned)queue.capacity) {
      store_queue_slot(queue.slots + place, item.run, queue.rows[child] + 1u);
    } else {
      beyond = (int)place;
    }
  }
  return __reduce_max_sync(0xffffffff, beyond);
}
// By a warp. Semaphores from that number on, and one more for none, are those of items of the queue.
DEVICE void publish(const Launch& launch, const Item& item, int semaphore) {
  const int count = launch.queue.semaphores, own = semaphore < count ? semaphore : semaphore - count - 1;
  if (first_lane()) {
    random_delay(launch, item, 1);
    if (own >= 0) add_release(launch.semaphores + own);
  }
  if (semaphore < count) return;
  __syncwarp();
  const int beyond = spawn(launch, item), later = (int)counted(launch, item.run, LATER);
  if (__any_sync(0xffffffff, beyond >= 0 || later)) {
    if (first_lane()) give_up(launch, item.number, beyond >= 0 ? OVERFLOW : EARLY, launch.queue.capacity, beyond + 1);
    return;
  }
  count_off(launch, item);
}
