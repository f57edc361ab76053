// A thread block on one CPU thread: its threads are fibers, a seeded scheduler picks who goes on, and asynchronous
// copies land at moments that the seed draws.
//
// Order is followed by vector clocks. An *agent* is whoever accesses memory: a thread; its cp.async copies; the products
// of a warp; a *channel*, which bulk copies take one after the other. Each access has the number that its agent's clock
// showed. What a thread knows of all agents' clocks grows when it acquires what others released:
//
//     seen[a]      accesses of agent a up to this number happened before
//     fenced[a]    and a proxy fence stands in between, so that the async proxy finds them too
//
// Numbers of agents: threads 0 .. T - 1, their cp.async copies T .. 2 T - 1, products of warps from 2 T, channels last.
#pragma once
#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <map>
#include <memory>
#include <ucontext.h>
#include <vector>

constexpr uint32_t WINDOW = 1024;         // where dynamic shared memory begins in the shared window
constexpr uint32_t CHANNELS = 96;         // bulk copies under way at once that the clocks tell apart
constexpr uint32_t STACK_BYTES = 1 << 16;
constexpr uint32_t NOBODY = 0xffff;

// What goes wrong; ``run.py`` has the names.
enum Kind : int { RACE, PROXY, UNWRITTEN, BOUNDS, BARRIER, DEADLOCK, PENDING, DIVERGED, TRAP, SETUP };

struct Fault {
  int kind, block;
  uint32_t at, bytes;  // in shared memory; no bytes: elsewhere
  uint32_t line, other_line;  // addresses in the library, 0: none
  char text[200];
};

// Memory that a kernel may use. ``watched``: what some of its threads write others read, so accesses must be ordered.
struct Buffer {
  char* begin;
  uint64_t bytes;
  int written, watched;
  uint64_t at;  // in the shadow of global memory
};

// What a text promises. First operands of products that begin within ``begin .. end - 1`` of shared memory have 64 rows
// for each of ``blocks`` of each warpgroup, of which the first ``rows`` are loaded; products may take anything for further
// rows, whose sums are NaN. A thread's sums lie block by block. Where boxes at the end of a tensor are smaller, products
// may take what nobody wrote, which is NaN, for rows that no result comes from.
struct Promises {
  int invalidates;  // every barrier, before the block ends
  int smaller;
  uint32_t begin, end, rows, blocks;
};

struct Knowledge {
  std::vector<uint32_t> seen, fenced;
  explicit Knowledge(size_t agents = 0) : seen(agents), fenced(agents) {}
  void join(const Knowledge& other) {
    const size_t agents = seen.size();
    uint32_t *a = seen.data(), *b = fenced.data();
    const uint32_t *c = other.seen.data(), *d = other.fenced.data();
    for (size_t i = 0; i < agents; ++i) a[i] = a[i] > c[i] ? a[i] : c[i];
    for (size_t i = 0; i < agents; ++i) b[i] = b[i] > d[i] ? b[i] : d[i];
  }
  void clear() {
    seen.assign(seen.size(), 0);
    fenced.assign(fenced.size(), 0);
  }
};

struct Random {
  uint64_t state;
  uint32_t next() {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
    return static_cast<uint32_t>((mixed ^ mixed >> 31) >> 16);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(uint64_t(next()) * n >> 32); }
  bool once_in(uint32_t n) { return n && below(n) == 0; }
};

struct Thread;
struct Copy;

// An mbarrier. It lies where its bytes lie; the shadow of these holds who may touch it when.
struct Barrier {
  bool live = false, fenced = false;
  uint32_t at = 0, arrivals = 0, phase = 0;  // in shared memory; expected in each phase; the one under way
  int64_t pending = 0, bytes = 0;            // arrivals and bytes that it still lacks
  uint32_t fence_thread = 0, fence_clock = 0;
  Knowledge arriving, arrived;  // of the phase under way, and of the one that ended last
};

// The products of a thread: of its warpgroup's, the elements that it holds. A first operand out of registers has them of
// the two rows that the thread has sums of.
struct Product {
  std::vector<float*> sum;
  uint64_t a, b;
  int n;
  bool half;
  uint32_t loaded, group;  // rows of a; the number of its group
  bool adds = true, transposed = false;
  std::vector<float> left;
  bool computed = false;
};
struct Sum {
  std::vector<float*> where;
  std::vector<float> values;
};

// A cp.async: ``bytes`` from ``source``, then zeros up to ``size``.
struct Piece {
  uint32_t at;
  const void* source;
  uint32_t size, bytes;
};

enum class Waits { NOTHING, MEETING, WARP, BARRIER, DONE };

struct Thread {
  jmp_buf at;
  ucontext_t start;
  bool started = false;
  uint32_t number = 0;
  Waits waits = Waits::NOTHING;
  uint32_t barrier = 0, parity = 0, line = 0;  // what it waits for, and where
  uint64_t exchanged[2] = {};
  uint32_t shuffles = 0;
  uint32_t asked = 0;  // for words
  unsigned held[2][6] = {};  // what it gives to the other lanes for matrices: a row of one, or operands of a product
  uint32_t exchanges = 0;
  Knowledge knows;
  std::vector<uint32_t> fenced_global;  // what was seen at its last proxy fence of global memory
  std::vector<Barrier*> initialised;  // and not yet known to the async proxy
  std::vector<Piece> pieces;                // since the last arrival
  std::vector<std::shared_ptr<Copy>> bulk;  // stores since the last commit
  std::vector<std::vector<std::shared_ptr<Copy>>> groups;
  uint32_t copy_clock = 1;
  std::vector<Product> products;
  std::vector<Sum> sums;
  uint32_t product_groups = 1;
  bool registers_fenced = false;
};

// Blocks that run beside each other, each in a copy of the library. One has its turn until it passes it on, so what they
// do depends on seeds alone.
struct Turns {
  std::vector<ucontext_t> at;  // where each goes on
  std::vector<bool> ended;
  uint32_t now = 0, left = 0;
  Random random{0};
  ucontext_t end;
  void pass();
};

// A kernel to run: ``blocks`` of its ``grid`` blocks, in ``order``; ``found`` is how many ``faults`` there are then.
struct Call {
  int kernel, grid, blocks, threads, count, found;
  uint32_t shared_bytes;
  uint64_t seed;
  char* shared;
  void** arguments;
  const Buffer* buffers;
  const Promises* promises;
  const int* order;
  Fault* faults;
  const char* image;
};

// Threads that meet: a numbered barrier of the block, or the lanes of a warp.
struct Meeting {
  uint32_t expected = 0, arrived = 0;
  const char* what = nullptr;
  std::vector<Thread*> waiting;
  Knowledge knows;
};

struct Machine {
  std::vector<Thread> threads;
  uint32_t agents = 0, block = 0;
  uint32_t live_threads = 0;
  int64_t registers = 0;  // that threads have beyond those with which the block began
  Random random{0};
  uint32_t land_one_in = 4, leave_one_in = 8;  // how often copies land, and how often the scheduler leaves a warp
  bool last_lane_first = false;
  std::vector<uint32_t> ready;  // lanes of each warp
  std::vector<Thread*> asleep;
  Turns* turns = nullptr;    // where further blocks run beside this one
  uint32_t pass_one_in = 0;  // how often it passes its turn on though there is something to do
  uint32_t warp = 0;
  uint64_t steps = 0, picks = 0, clock_ns = 0;
  Thread* current = nullptr;
  jmp_buf scheduler;
  bool fatal = false;
  char* shared = nullptr;
  uint32_t shared_bytes = 0;
  const char* image = nullptr;
  std::vector<Buffer> buffers;
  Promises promises{};
  std::map<const void*, Knowledge> released;  // to words of global memory
  std::vector<Fault> faults;
  std::vector<Barrier> barriers;  // by byte / 8
  std::vector<uint32_t> channel_clock;
  std::vector<std::shared_ptr<Copy>> flying;
  Meeting meetings[16];
  std::vector<Meeting> warps;

  uint32_t copies_of(uint32_t thread) const { return static_cast<uint32_t>(threads.size()) + thread; }
  uint32_t products_of(uint32_t warp) const { return static_cast<uint32_t>(2 * threads.size()) + warp; }
  uint32_t channel(uint32_t n) const { return products_of(static_cast<uint32_t>(ready.size())) + n; }
};
extern Machine machine;

#define LINE static_cast<uint32_t>(static_cast<const char*>(__builtin_return_address(0)) - machine.image)

// Records a fault once for each pair of places, and goes on; ``give_up`` ends the block.
void report(Kind kind, uint32_t at, uint32_t bytes, uint32_t line, uint32_t other_line, const char* format, ...)
    __attribute__((format(printf, 6, 7)));
[[noreturn]] void give_up();

// The current thread lets others go on until it is picked again: by chance, or until ``wake``.
void maybe_leave();
void wait(Waits what, uint32_t line);
void wake(Thread& thread);
void meet_lanes(const char* what, uint32_t line);  // all of the warp, which orders no memory

// Others' clocks go on from here: what the thread does from now on is not what it released.
inline void tick(Thread& thread) { ++thread.knows.seen[thread.number]; }

// Barriers.
Barrier* barrier_at(uint32_t at, uint32_t line);  // ``at`` in the shared window; gives up where there is none
bool passes(uint32_t at, uint32_t parity);
void arrive(Barrier& barrier, const Knowledge* released, uint32_t line);
void complete_bytes(Barrier& barrier, uint32_t bytes, uint32_t channel, uint32_t line);
void end_barriers();

// Memory.
bool on_stack(const void* at);
const Buffer* buffer_of(const void* at, uint64_t bytes);  // null: outside of all

// Copies and products.
void land_one();
void end_thread(Thread& thread);
void end_copies();
void check_posted(uint32_t line);  // a post to other blocks: all bulk stores are written
// Where what belongs at ``address`` of rows of 128 bytes lies under the 128-byte swizzle.
inline uint32_t swizzled_by_128(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }
