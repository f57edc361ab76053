// Fibers, the scheduler, the meetings of threads, and the way in from Python.
#include "machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#include "cuda.h"
#include "shadow.h"

Machine machine;
Dim3 threadIdx, blockIdx, blockDim, gridDim;
using Entry = void (*)(void**);
extern "C" const Entry kernels[];

namespace {
constexpr uint64_t MOST_STEPS = 4'000'000;
constexpr size_t MOST_FAULTS = 64;
constexpr uint32_t SLEEP = 8;  // of so many steps of the scheduler one ends the sleep of all
constexpr uint64_t MOST_PICKS = 1 << 16;  // of threads of a block, one after another
constexpr uint32_t REST_NS = 5000;  // of a block of which nobody has anything to do, until it has its turn again
char* stacks;
size_t stacks_bytes;
Entry entry;
void** parameters;

void run_thread() {
  entry(parameters);
  end_thread(*machine.current);
  wait(Waits::DONE, 0);
}

// Leaves the current fiber, or the scheduler's own context, for ``next``.
void go_on(Thread* next) {
  machine.current = next;
  if (!next) _longjmp(machine.scheduler, 1);
  threadIdx.x = next->number;
  if (next->started) _longjmp(next->at, 1);
  next->started = true;
  setcontext(&next->start);
}

bool may_go_on(Thread& thread) { return thread.waits != Waits::BARRIER || passes(thread.barrier, thread.parity); }

// Time passes, and who slept looks again; a copy may land in between. Where nobody of the block has anything else to do,
// only others end that: blocks that run beside it, or nobody, until a wait has lasted for too long.
void end_sleep(bool idle) {
  if (!machine.flying.empty() && machine.random.once_in(SLEEP)) land_one();
  if (idle) machine.clock_ns += REST_NS;
  if (machine.turns && (idle || machine.random.once_in(SLEEP))) machine.turns->pass();
  for (Thread* thread : machine.asleep) wake(*thread);
  machine.asleep.clear();
}

// Who is next; nobody if all are done or nobody ever can.
Thread* pick() {
  for (;;) {
    if (!machine.flying.empty() && machine.random.once_in(machine.land_one_in)) land_one();
    if (!machine.asleep.empty() && machine.random.once_in(SLEEP)) end_sleep(false);
    // A warp that looks without sleeping keeps a turn no longer: every block comes on, as on a GPU.
    const bool long_enough = ++machine.picks % MOST_PICKS == 0;
    if (machine.turns && (machine.random.once_in(machine.pass_one_in) || long_enough)) machine.turns->pass();
    if (!machine.ready[machine.warp] || machine.random.once_in(machine.leave_one_in)) {
      const uint32_t warps = static_cast<uint32_t>(machine.ready.size()), first = machine.random.below(warps);
      uint32_t some = 0;
      while (some < warps && !machine.ready[(first + some) % warps]) ++some;
      if (some == warps) {
        if (machine.flying.empty() && machine.asleep.empty()) return nullptr;
        if (machine.flying.empty()) end_sleep(true);
        else land_one();
        continue;
      }
      machine.warp = (first + some) % warps;
    }
    uint32_t& lanes = machine.ready[machine.warp];
    const int lane = machine.last_lane_first ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes);
    Thread& thread = machine.threads[machine.warp * 32 + lane];
    lanes &= ~(1u << lane);
    if (may_go_on(thread)) return &thread;  // else the phase went by while it slept
  }
}

void leave() {
  Thread* const self = machine.current;
  Thread* const next = pick();
  if (next == self) return;
  if (!_setjmp(self->at)) go_on(next);
}

// All of ``expected`` threads meet; the last one wakes the others.
void meet(Meeting& meeting, Waits what, uint32_t expected, const char* name, bool orders, uint32_t line) {
  Thread& self = *machine.current;
  if (!meeting.arrived) {
    meeting.expected = expected;
    meeting.what = name;
  } else if (meeting.expected != expected || strcmp(meeting.what, name)) {
    report(DIVERGED, 0, 0, line, meeting.waiting[0]->line, "thread %u comes to %s of %u threads, thread %u to %s of %u",
           self.number, name, expected, meeting.waiting[0]->number, meeting.what, meeting.expected);
    give_up();
  }
  if (orders) meeting.knows.join(self.knows);
  meeting.waiting.push_back(&self);
  if (++meeting.arrived < expected) {
    wait(what, line);
    return;
  }
  for (Thread* thread : meeting.waiting) {
    if (orders) {
      thread->knows = meeting.knows;
      tick(*thread);
    }
    if (thread != &self) wake(*thread);
  }
  meeting.waiting.clear();
  meeting.arrived = 0;
  if (orders) meeting.knows.clear();
  maybe_leave();
}

void start_block(uint32_t number) {
  machine.block = number;
  machine.agents = machine.channel(CHANNELS);
  blockIdx = {number, 0, 0};
  memset(machine.shared, 0xff, machine.shared_bytes);
  shadow.reset(machine.shared_bytes);
  uint64_t watched = 0;
  for (Buffer& buffer : machine.buffers) {
    buffer.at = watched;
    watched += buffer.watched ? buffer.bytes : 0;
  }
  global_shadow.reset(watched);
  machine.released.clear();
  machine.barriers.assign(machine.shared_bytes / 8, Barrier());
  machine.channel_clock.assign(CHANNELS, 0);
  machine.flying.clear();
  machine.asleep.clear();
  machine.fatal = false;
  machine.steps = 0;
  machine.live_threads = static_cast<uint32_t>(machine.threads.size());
  machine.registers = 0;
  for (Meeting& meeting : machine.meetings) meeting = Meeting{0, 0, nullptr, {}, Knowledge(machine.agents)};
  machine.warps.assign(machine.ready.size(), Meeting{0, 0, nullptr, {}, Knowledge(machine.agents)});
  for (uint32_t& lanes : machine.ready) lanes = 0xffffffff;
  machine.warp = 0;
  for (Thread& thread : machine.threads) {
    const uint32_t n = static_cast<uint32_t>(&thread - machine.threads.data());
    thread = Thread();
    thread.number = n;
    thread.knows = Knowledge(machine.agents);
    thread.knows.seen[n] = 1;
    thread.fenced_global.assign(machine.agents, 0);
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = stacks + size_t(n) * STACK_BYTES;
    thread.start.uc_stack.ss_size = STACK_BYTES;
    thread.start.uc_link = nullptr;
    makecontext(&thread.start, run_thread, 0);
  }
}

void report_deadlock() {
  bool stuck = false;
  for (const Thread& thread : machine.threads) {
    if (thread.waits == Waits::DONE || thread.waits == Waits::NOTHING) continue;
    stuck = true;
    const char* const what = thread.waits == Waits::BARRIER ? "for a phase of a barrier"
                             : thread.waits == Waits::WARP  ? "for lanes of its warp"
                                                            : "for other threads";
    const bool barrier = thread.waits == Waits::BARRIER;
    report(DEADLOCK, thread.barrier, barrier ? 8 : 0, thread.line, 0, "thread %u waits %s for ever", thread.number, what);
  }
  if (!stuck) report(DEADLOCK, 0, 0, 0, 0, "threads wait for ever");
}

void run_block(uint32_t number) {
  start_block(number);
  if (!_setjmp(machine.scheduler)) go_on(pick());
  if (machine.fatal) return;
  if (machine.live_threads) {
    report_deadlock();
    return;
  }
  end_copies();
  end_barriers();
  if (machine.registers > 0)
    report(DEADLOCK, 0, 0, 0, 0, "roles wait for ever for %lld registers more than the block has",
           static_cast<long long>(machine.registers));
}

// A block begins with as many registers for each thread as an SM has for all of them, in steps of 8.
void deal(int registers) {
  machine.registers += registers - std::min<int64_t>(256, 65536 / static_cast<int64_t>(machine.threads.size()) / 8 * 8);
}
}  // namespace

void ptx::setmaxnreg_inc_sync_aligned_u32(int registers) { deal(registers); }
void ptx::setmaxnreg_dec_sync_aligned_u32(int registers) { deal(registers); }

void report(Kind kind, uint32_t at, uint32_t bytes, uint32_t line, uint32_t other_line, const char* format, ...) {
  for (Fault& known : machine.faults)
    if (known.kind == kind && known.line == line && known.other_line == other_line) return;
  if (machine.faults.size() >= MOST_FAULTS) return;
  Fault fault{kind, static_cast<int>(machine.block), at, bytes, line, other_line, {}};
  va_list values;
  va_start(values, format);
  vsnprintf(fault.text, sizeof fault.text, format, values);
  va_end(values);
  machine.faults.push_back(fault);
}

void give_up() {
  machine.fatal = true;
  _longjmp(machine.scheduler, 1);
}

void maybe_leave() {
  if (++machine.steps > MOST_STEPS) {
    report(DEADLOCK, 0, 0, 0, 0, "threads still run after %llu steps", static_cast<unsigned long long>(MOST_STEPS));
    give_up();
  }
  if (!machine.random.once_in(machine.leave_one_in)) return;
  wake(*machine.current);
  leave();
}

void wait(Waits what, uint32_t line) {
  machine.current->waits = what;
  machine.current->line = line;
  machine.live_threads -= what == Waits::DONE;
  leave();
  machine.current->waits = Waits::NOTHING;
}

void wake(Thread& thread) { machine.ready[thread.number / 32] |= 1u << thread.number % 32; }

void __syncthreads() {
  const uint32_t all = static_cast<uint32_t>(machine.threads.size());
  meet(machine.meetings[0], Waits::MEETING, all, "a barrier", true, LINE);
}

void ptx::bar_sync(unsigned name, unsigned threads) {
  meet(machine.meetings[name % 16], Waits::MEETING, threads, "a barrier", true, LINE);
}

void __syncwarp(unsigned lanes) {
  Meeting& warp = machine.warps[machine.current->number / 32];
  meet(warp, Waits::WARP, __builtin_popcount(lanes), "__syncwarp", true, LINE);
}

namespace {
// What each lane of a warp gives, by lane; the first of it is returned, and ``turn`` is where it lies in a lane.
const Thread* exchange(unsigned lanes, unsigned long long value, const char* what, uint32_t line, int& turn) {
  Thread& self = *machine.current;
  turn = self.shuffles++ & 1;  // a lane is at most one exchange ahead of those that have yet to read its value
  self.exchanged[turn] = value;
  meet(machine.warps[self.number / 32], Waits::WARP, __builtin_popcount(lanes), what, false, line);
  return &machine.threads[self.number / 32 * 32];
}
}  // namespace

unsigned long long shuffle(unsigned lanes, unsigned long long value, int from) {
  int turn;
  return exchange(lanes, value, "a shuffle", LINE, turn)[from].exchanged[turn];
}

unsigned __ballot_sync(unsigned lanes, bool holds) {
  int turn;
  const Thread* const warp = exchange(lanes, holds, "a vote", LINE, turn);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (lanes >> lane & 1) votes |= static_cast<unsigned>(warp[lane].exchanged[turn]) << lane;
  return votes;
}

unsigned __reduce_min_sync(unsigned lanes, unsigned value) {
  int turn;
  const Thread* const warp = exchange(lanes, value, "a minimum", LINE, turn);
  for (int lane = 0; lane < 32; ++lane)
    if (lanes >> lane & 1) value = std::min(value, static_cast<unsigned>(warp[lane].exchanged[turn]));
  return value;
}

unsigned __reduce_add_sync(unsigned lanes, unsigned value) {
  int turn;
  const Thread* const warp = exchange(lanes, value, "a sum", LINE, turn);
  value = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (lanes >> lane & 1) value += static_cast<unsigned>(warp[lane].exchanged[turn]);
  return value;
}

void meet_lanes(const char* what, uint32_t line) {
  meet(machine.warps[machine.current->number / 32], Waits::WARP, 32, what, false, line);
}

unsigned long long __cvta_generic_to_shared(const void* pointer) {
  return static_cast<const char*>(pointer) - machine.shared + WINDOW;
}

void __nanosleep(unsigned nanoseconds) {
  machine.clock_ns += nanoseconds;
  machine.asleep.push_back(machine.current);
  leave();
}

void ptx::mov_u64_globaltimer(unsigned long long& now) { now = ++machine.clock_ns; }
void ptx::mov_u32_smid(unsigned& sm) { sm = 0; }
void ptx::trap() {
  report(TRAP, 0, 0, LINE, 0, "thread %u traps", machine.current->number);
  give_up();
}

bool on_stack(const void* at) { return static_cast<uint64_t>(static_cast<const char*>(at) - stacks) < stacks_bytes; }

void Turns::pass() {
  const uint32_t last = now, blocks = static_cast<uint32_t>(at.size());
  now = random.below(blocks);
  while (ended[now] || (now == last && left > 1)) now = (now + 1) % blocks;
  if (now != last) swapcontext(&at[last], &at[now]);
}

namespace {
using Emulate = void(Call*, Turns*);
// Of the copy of the library that all blocks are started from.
Turns* started;
Emulate* const* emulators;
Call** calls;

void run_beside() {
  const uint32_t block = started->now;
  emulators[block](calls[block], started);
  started->ended[block] = true;
  if (--started->left) started->pass();
  setcontext(&started->end);
}
}  // namespace

extern "C" {
__attribute__((visibility("default"))) void emulate(Call* call, Turns* turns) {
  machine.random.state = call->seed;
  constexpr uint32_t LANDS[] = {4096, 1, 4, 32}, LEAVES[] = {2, 8, 64};  // 4096: late, but also while somebody polls
  constexpr uint32_t PASSES[] = {0, 64, 4096};                           // 0: where all wait or poll, or after long
  machine.land_one_in = LANDS[machine.random.below(4)];
  machine.leave_one_in = LEAVES[machine.random.below(3)];
  machine.last_lane_first = machine.random.below(2);
  machine.turns = turns;
  if (turns) machine.pass_one_in = PASSES[machine.random.below(3)];
  machine.shared = call->shared;
  machine.shared_bytes = (call->shared_bytes + 7) / 8 * 8;
  machine.image = call->image;
  machine.buffers.assign(call->buffers, call->buffers + call->count);
  machine.promises = *call->promises;
  machine.faults.clear();
  machine.threads = std::vector<Thread>(call->threads);
  machine.ready.assign((call->threads + 31) / 32, 0);
  if (!stacks || stacks_bytes < size_t(call->threads) * STACK_BYTES) {
    if (stacks) munmap(stacks, stacks_bytes);
    stacks_bytes = size_t(call->threads) * STACK_BYTES;
    stacks = static_cast<char*>(mmap(nullptr, stacks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  entry = kernels[call->kernel];
  parameters = call->arguments;
  blockDim = {static_cast<unsigned>(call->threads), 1, 1};
  gridDim = {static_cast<unsigned>(call->grid), 1, 1};
  for (int i = 0; i < call->blocks && !machine.fatal; ++i) run_block(call->order[i]);
  machine.fatal = false;
  memcpy(call->faults, machine.faults.data(), machine.faults.size() * sizeof(Fault));
  call->found = static_cast<int>(machine.faults.size());
}

// Runs a call in each of so many copies of the library, which take turns.
__attribute__((visibility("default"))) void emulate_beside(int blocks, Emulate* const* copies, Call** of_each, uint64_t seed) {
  constexpr size_t STACK_OF_BLOCK_BYTES = 1 << 20;
  const std::unique_ptr<char[]> stack_of_each(new char[blocks * STACK_OF_BLOCK_BYTES]);
  Turns turns;
  turns.at = std::vector<ucontext_t>(blocks);
  turns.ended.assign(blocks, false);
  turns.left = blocks;
  turns.random.state = seed;
  turns.now = turns.random.below(blocks);
  for (int block = 0; block < blocks; ++block) {
    getcontext(&turns.at[block]);
    turns.at[block].uc_stack.ss_sp = stack_of_each.get() + block * STACK_OF_BLOCK_BYTES;
    turns.at[block].uc_stack.ss_size = STACK_OF_BLOCK_BYTES;
    turns.at[block].uc_link = nullptr;
    makecontext(&turns.at[block], run_beside, 0);
  }
  started = &turns;
  emulators = copies;
  calls = of_each;
  swapcontext(&turns.end, &turns.at[turns.now]);
}
}
