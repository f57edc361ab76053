// Asynchronous copies: bulk copies of boxes by tensor maps, and cp.async. What is being copied to is poison until the
// copy lands; where it is from may change until then.
#include <algorithm>
#include <cstring>

#include "cuda.h"
#include "shadow.h"

constexpr int DIMENSIONS = 4;
// What ``launch.py`` writes into the 128 bytes of a tensor map; dimensions from the innermost out. Elements of a box
// along a dimension are `steps` apart in the tensor, and next to each other in shared memory.
struct Map {
  char* base;
  uint64_t strides[DIMENSIONS];
  uint32_t rank, itemsize, swizzled;
  uint32_t extents[DIMENSIONS], box[DIMENSIONS], steps[DIMENSIONS];
};
static_assert(sizeof(Map) <= 128, "a tensor map");

// A bulk load, a bulk store, or what a thread copied by cp.async up to an arrival.
struct Copy {
  enum { LOAD, STORE, PIECES } kind;
  uint32_t thread, line, at = 0, bytes = 0, channel = 0, clock = 0;
  Map map = {};  // its own: the text's is a parameter, gone when the thread ends
  int from[DIMENSIONS] = {};
  Barrier* barrier = nullptr;
  bool read = false, written = false, awaited = false;  // awaited: its thread knows that it is written
  std::vector<char> data{};
  std::vector<Piece> pieces{};
};

namespace {
// By a tensor map shared memory is at a multiple of 128 bytes, else at one of 16.
Copy bulk(int kind, const Map& map, ptx::Coordinates from, uint32_t window, uint32_t line, uint32_t align = 128) {
  Copy copy{kind == Copy::LOAD ? Copy::LOAD : Copy::STORE, machine.current->number, line};
  copy.map = map;
  std::copy(from.begin(), from.end(), copy.from);
  copy.at = window - WINDOW;
  copy.bytes = map.box[0] * map.box[1] * map.box[2] * map.box[3] * map.itemsize;
  const bool row = map.steps[0] == 1 && map.box[0] * map.itemsize % 16 == 0 && (!map.swizzled || map.box[0] * map.itemsize == 128);
  if (from.size() != map.rank || copy.at % align || !row) {
    report(SETUP, copy.at, 0, line, 0, "a bulk copy that the copy engine does not take");
    give_up();
  }
  if (uint64_t(copy.at) + copy.bytes > machine.shared_bytes) {
    report(BOUNDS, copy.at, copy.bytes, line, 0, "a bulk copy reaches past the end of shared memory");
    give_up();
  }
  const std::vector<uint32_t>& seen = machine.current->knows.seen;
  while (copy.channel < CHANNELS && seen[machine.channel(copy.channel)] < machine.channel_clock[copy.channel])
    ++copy.channel;
  if (copy.channel == CHANNELS) {
    report(SETUP, 0, 0, line, 0, "over %u bulk copies that thread %u does not know to have ended", CHANNELS,
           copy.thread);
    give_up();
  }
  copy.clock = ++machine.channel_clock[copy.channel];
  return copy;
}

By by_channel(const Copy& copy) {
  return {machine.channel(copy.channel), copy.clock, copy.line, &machine.threads[copy.thread].knows, true};
}

// Each row of a box: where it begins in shared memory, how much of it there is, where that lies in the tensor.
template <class Row> void rows(const Copy& copy, Row row) {
  const Map& map = copy.map;
  const uint32_t bytes = static_cast<uint32_t>(map.box[0] * map.itemsize);
  uint32_t inside = 0;
  const uint32_t count = map.box[1] * map.box[2] * map.box[3];
  for (uint32_t n = 0; n < count; ++n, inside += bytes) {
    char* base = map.base;
    bool there = true;
    uint32_t rest = n;
    for (int d = 1; d < DIMENSIONS; rest /= map.box[d++]) {
      const int64_t at = copy.from[d] + int64_t(rest % map.box[d]) * map.steps[d];
      there &= at >= 0 && at < int64_t(map.extents[d]);
      base += at * int64_t(map.strides[d]);
    }
    const int64_t first = std::clamp<int64_t>(-int64_t(copy.from[0]), 0, map.box[0]);
    const int64_t last = std::clamp<int64_t>(int64_t(map.extents[0]) - copy.from[0], first, map.box[0]);
    const uint32_t skip = static_cast<uint32_t>(first * map.itemsize);
    const uint32_t length = there ? static_cast<uint32_t>((last - first) * map.itemsize) : 0;
    row(inside, skip, length, base + (copy.from[0] + first) * int64_t(map.itemsize));
  }
}

// 16 bytes of shared memory, by their place in the box.
char* sixteen(const Copy& copy, uint32_t inside) {
  const uint32_t window = copy.at + WINDOW + inside;
  return machine.shared + (copy.map.swizzled ? swizzled_by_128(window) : window) - WINDOW;
}

void load(Copy& copy) {
  std::vector<char> box(copy.bytes, 0);
  rows(copy, [&](uint32_t inside, uint32_t skip, uint32_t length, char* source) {
    if (length) memcpy(box.data() + inside + skip, source, length);
  });
  for (uint32_t at = 0; at < copy.bytes; at += 16) memcpy(sixteen(copy, at), box.data() + at, 16);
  complete_bytes(*copy.barrier, copy.bytes, copy.channel, copy.line);
}

void read_source(Copy& copy) {
  copy.data.resize(copy.bytes);
  for (uint32_t at = 0; at < copy.bytes; at += 16) memcpy(copy.data.data() + at, sixteen(copy, at), 16);
  copy.read = true;
}

void write_target(Copy& copy) {
  if (!copy.read) read_source(copy);
  rows(copy, [&](uint32_t inside, uint32_t skip, uint32_t length, char* target) {
    if (length) memcpy(target, copy.data.data() + inside + skip, length);
  });
  copy.written = true;
}

void land_pieces(Copy& copy) {
  for (const Piece& piece : copy.pieces) {
    memset(machine.shared + piece.at, 0, piece.size);
    if (piece.bytes) memcpy(machine.shared + piece.at, piece.source, piece.bytes);
  }
  uint32_t& known = copy.barrier->arriving.seen[machine.copies_of(copy.thread)];
  known = std::max(known, copy.clock);
  arrive(*copy.barrier, nullptr, copy.line);
}

void await_groups(int pending, bool written) {
  Thread& self = *machine.current;
  maybe_leave();
  for (size_t i = 0; i + pending < self.groups.size(); ++i)
    for (const std::shared_ptr<Copy>& copy : self.groups[i]) {
      if (!copy->read) read_source(*copy);
      if (written && !copy->written) write_target(*copy);
      copy->awaited |= written;
      uint32_t& known = self.knows.seen[machine.channel(copy->channel)];
      known = std::max(known, copy->clock);
    }
}
}  // namespace

void land_one() {
  const uint32_t i = machine.random.below(static_cast<uint32_t>(machine.flying.size()));
  const std::shared_ptr<Copy> copy = machine.flying[i];
  if (copy->kind == Copy::STORE && !copy->read) {
    read_source(*copy);
    return;
  }
  machine.flying[i] = machine.flying.back();
  machine.flying.pop_back();
  if (copy->kind == Copy::LOAD) load(*copy);
  else if (copy->kind == Copy::PIECES) land_pieces(*copy);
  else if (!copy->written) write_target(*copy);
}

void end_thread(Thread& thread) {
  for (const std::shared_ptr<Copy>& copy : thread.bulk)
    report(PENDING, copy->at, copy->bytes, copy->line, 0, "thread %u never commits its bulk store", thread.number);
  for (const auto& group : thread.groups)
    for (const std::shared_ptr<Copy>& copy : group)
      if (thread.knows.seen[machine.channel(copy->channel)] < copy->clock)
        report(PENDING, copy->at, copy->bytes, copy->line, 0,
               "thread %u ends before its bulk store has read shared memory", thread.number);
  for (const Piece& piece : thread.pieces)
    report(PENDING, piece.at, piece.size, 0, 0, "thread %u ends and no barrier hears of its cp.async", thread.number);
  if (!thread.products.empty())
    report(PENDING, 0, 0, 0, 0, "thread %u ends before its products", thread.number);
}

void check_posted(uint32_t line) {
  for (const Thread& thread : machine.threads)
    for (const auto& group : thread.groups)
      for (const std::shared_ptr<Copy>& copy : group)
        if (!copy->awaited)
          report(PENDING, copy->at, copy->bytes, copy->line, line, "a post before thread %u knows its bulk store written",
                 thread.number);
}

void end_copies() {
  while (!machine.flying.empty()) land_one();
}

namespace {
void begin_load(
    const Map& map, ptx::Coordinates from, unsigned target, unsigned at, uint32_t line, uint32_t align = 128) {
  Copy copy = bulk(Copy::LOAD, map, from, target, line, align);
  copy.barrier = barrier_at(at, line);
  const By by = by_channel(copy);
  const Barrier& barrier = *copy.barrier;
  const uint32_t agents = machine.copies_of(0);
  const Access& initialised = shadow.cells[barrier.at / GRAIN].write;
  const bool known = barrier.fenced && by.knows->seen[barrier.fence_thread] >= barrier.fence_clock;
  shadow.use(barrier.at, by, known || (initialised.agent < agents && by.knows->fenced[initialised.agent] >= initialised.clock));
  shadow.write(copy.at, copy.bytes, by);
  rows(copy, [&](uint32_t, uint32_t, uint32_t length, char* source) {
    const Buffer* const buffer = length ? buffer_of(source, length) : nullptr;
    if (buffer && buffer->watched)
      global_shadow.read(static_cast<uint32_t>(buffer->at + (source - buffer->begin)), length, by);
  });
  memset(machine.shared + copy.at, 0xff, copy.bytes);
  machine.flying.push_back(std::make_shared<Copy>(std::move(copy)));
  maybe_leave();
}
}  // namespace

void ptx::bulk_load(unsigned target, const void* map, Coordinates from, unsigned at) {
  begin_load(*static_cast<const Map*>(map), from, target, at, LINE);
}

// Neighbours in memory: a box of one row, all of which a buffer holds.
void ptx::cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned target, const void* source, unsigned bytes, unsigned at) {
  const uint32_t line = LINE;
  if (!bytes || bytes % 16 || reinterpret_cast<uintptr_t>(source) % 16 || !buffer_of(source, bytes)) {
    report(BOUNDS, target - WINDOW, bytes, line, 0, "a bulk copy of %u bytes, unaligned or out of bounds", bytes);
    give_up();
  }
  char* const base = const_cast<char*>(static_cast<const char*>(source));
  const Map row = {base, {1, 0, 0, 0}, 1, 1, 0, {bytes, 1, 1, 1}, {bytes, 1, 1, 1}, {1, 1, 1, 1}};
  begin_load(row, {0}, target, at, line, 16);
}

void ptx::bulk_store(const void* map, Coordinates from, unsigned source) {
  Copy copy = bulk(Copy::STORE, *static_cast<const Map*>(map), from, source, LINE);
  shadow.read(copy.at, copy.bytes, by_channel(copy));
  machine.flying.push_back(std::make_shared<Copy>(std::move(copy)));
  machine.current->bulk.push_back(machine.flying.back());
  maybe_leave();
}

void ptx::cp_async_bulk_commit_group() {
  machine.current->groups.push_back(std::move(machine.current->bulk));
  machine.current->bulk.clear();
}

void ptx::cp_async_bulk_wait_group_read(int pending) { await_groups(pending, false); }
void ptx::cp_async_bulk_wait_group(int pending) { await_groups(pending, true); }

void ptx::cp_async(unsigned target, const void* source, int size, int bytes) {
  const uint32_t line = LINE, at = target - WINDOW;
  Thread& self = *machine.current;
  if (at % size || uint64_t(at) + size > machine.shared_bytes || bytes < 0 || bytes > size ||
      reinterpret_cast<uintptr_t>(source) % size || (bytes && !buffer_of(source, bytes))) {
    report(BOUNDS, at, size, line, 0, "cp.async of %d bytes, %d of them there, unaligned or out of bounds", size, bytes);
    give_up();
  }
  shadow.write(at, size, {machine.copies_of(self.number), self.copy_clock, line, &self.knows, false});
  memset(machine.shared + at, 0xff, size);
  self.pieces.push_back({at, source, static_cast<uint32_t>(size), static_cast<uint32_t>(bytes)});
}

void ptx::cp_async_mbarrier_arrive_noinc_shared_cta_b64(unsigned at) {
  const uint32_t line = LINE;
  Thread& self = *machine.current;
  Copy copy{Copy::PIECES, self.number, line};
  copy.barrier = barrier_at(at, line);
  copy.clock = self.copy_clock++;
  copy.pieces = std::move(self.pieces);
  self.pieces.clear();
  shadow.use(copy.barrier->at, {machine.copies_of(self.number), copy.clock, line, &self.knows, false}, true);
  machine.flying.push_back(std::make_shared<Copy>(std::move(copy)));
  maybe_leave();
}
