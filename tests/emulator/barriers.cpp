// mbarriers: phases, arrivals, bytes, and what those who wait learn (PTX ISA, "Parallel Synchronization and
// Communication Instructions: mbarrier").
//
// A phase ends when its arrivals have come and its bytes balance. Who waits acquires what was released to the phase that
// ended last, which is the one that it waits for or, as on the device, a later one of the same parity.
#include "cuda.h"
#include "shadow.h"

namespace {
constexpr uint32_t MOST = (1u << 20) - 1;

void use(Barrier& barrier, uint32_t line) { shadow.use(barrier.at, by_thread(*machine.current, line), true); }

void end_phase_if_complete(Barrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
  std::swap(barrier.arrived, barrier.arriving);
  barrier.arriving.clear();
  for (Thread& thread : machine.threads)
    if (thread.waits == Waits::BARRIER && thread.barrier == barrier.at) wake(thread);
}

void mark(uint32_t at, bool barrier) {
  for (uint32_t i = at / GRAIN; i < (at + 8) / GRAIN; ++i) shadow.cells[i].barrier = barrier;
}
}  // namespace

Barrier* barrier_at(uint32_t at, uint32_t line) {
  const uint32_t inside = at - WINDOW;
  if (inside % 8 || inside / 8 >= machine.barriers.size() || !machine.barriers[inside / 8].live) {
    report(BARRIER, inside, 8, line, 0, "thread %u uses a barrier that does not exist", machine.current->number);
    give_up();
  }
  return &machine.barriers[inside / 8];
}

bool passes(uint32_t at, uint32_t parity) { return (machine.barriers[at / 8].phase & 1) != parity; }

void arrive(Barrier& barrier, const Knowledge* released, uint32_t line) {
  if (barrier.pending == 0) {
    report(BARRIER, barrier.at, 8, line, 0, "more arrivals in a phase than the %u that the barrier counts",
           barrier.arrivals);
    give_up();
  }
  --barrier.pending;
  if (released) barrier.arriving.join(*released);
  end_phase_if_complete(barrier);
}

void complete_bytes(Barrier& barrier, uint32_t bytes, uint32_t channel, uint32_t line) {
  if (!barrier.live) {
    report(BARRIER, barrier.at, 8, line, 0, "a bulk copy ends on a barrier that is gone");
    return;
  }
  if (barrier.bytes < bytes)
    report(BARRIER, barrier.at, 8, line, 0, "a bulk copy of %u bytes ends where %lld are expected", bytes,
           static_cast<long long>(barrier.bytes));
  barrier.bytes -= bytes;
  uint32_t& known = barrier.arriving.seen[machine.channel(channel)];
  known = std::max(known, machine.channel_clock[channel]);
  end_phase_if_complete(barrier);
}

void end_barriers() {
  for (const Barrier& barrier : machine.barriers) {
    if (!barrier.live) continue;
    if (machine.promises.invalidates)
      report(PENDING, barrier.at, 8, 0, 0, "a barrier is not invalidated when the block ends");
    else if (barrier.pending != barrier.arrivals || barrier.bytes)
      report(PENDING, barrier.at, 8, 0, 0, "the block ends within a phase: %lld of %u arrivals and %lld bytes to come",
             static_cast<long long>(barrier.pending), barrier.arrivals, static_cast<long long>(barrier.bytes));
  }
}

void ptx::mbarrier_init_shared_cta_b64(unsigned at, unsigned arrivals) {
  const uint32_t inside = at - WINDOW, line = LINE;
  if (inside % 8 || inside / 8 >= machine.barriers.size() || arrivals == 0 || arrivals > MOST) {
    report(BARRIER, inside, 8, line, 0, "a barrier of %u arrivals at byte %u", arrivals, inside);
    give_up();
  }
  Barrier& barrier = machine.barriers[inside / 8];
  if (barrier.live) report(BARRIER, inside, 8, line, 0, "initialisation of a barrier that is in use");
  mark(inside, false);
  shadow.write(inside, 8, by_thread(*machine.current, line));
  mark(inside, true);
  barrier = Barrier();
  barrier.live = true;
  barrier.at = inside;
  barrier.arrivals = arrivals;
  barrier.pending = arrivals;
  barrier.arriving = barrier.arrived = Knowledge(machine.agents);
  machine.current->initialised.push_back(&barrier);
  maybe_leave();
}

void ptx::mbarrier_inval_shared_cta_b64(unsigned at) {
  const uint32_t line = LINE;
  Barrier& barrier = *barrier_at(at, line);
  for (const Thread& thread : machine.threads)
    if (thread.waits == Waits::BARRIER && thread.barrier == barrier.at)
      report(BARRIER, barrier.at, 8, line, thread.line, "a barrier goes while thread %u waits on it", thread.number);
  if (barrier.pending != barrier.arrivals || barrier.bytes)
    report(PENDING, barrier.at, 8, line, 0, "a barrier goes within a phase: %lld of %u arrivals and %lld bytes to come",
           static_cast<long long>(barrier.pending), barrier.arrivals, static_cast<long long>(barrier.bytes));
  mark(barrier.at, false);
  shadow.write(barrier.at, 8, by_thread(*machine.current, line));
  barrier.live = false;
  maybe_leave();
}

void ptx::fence_mbarrier_init_release_cluster() {
  Thread& self = *machine.current;
  for (Barrier* barrier : self.initialised) {
    barrier->fenced = true;
    barrier->fence_thread = self.number;
    barrier->fence_clock = self.knows.seen[self.number];
  }
  self.initialised.clear();
  tick(self);
}

void ptx::fence_proxy_async_shared_cta() {
  Thread& self = *machine.current;
  self.knows.fenced = self.knows.seen;
  tick(self);
  maybe_leave();
}

void ptx::fence_proxy_async_global() {
  Thread& self = *machine.current;
  self.fenced_global = self.knows.seen;
  maybe_leave();
}

void ptx::mbarrier_arrive_shared_cta_b64(unsigned at, unsigned arrivals) {
  const uint32_t line = LINE;
  Barrier& barrier = *barrier_at(at, line);
  use(barrier, line);
  for (unsigned n = 0; n < arrivals; ++n) arrive(barrier, &machine.current->knows, line);
  tick(*machine.current);
  maybe_leave();
}

void ptx::mbarrier_arrive_expect_tx_shared_cta_b64(unsigned at, unsigned bytes) {
  const uint32_t line = LINE;
  Barrier& barrier = *barrier_at(at, line);
  use(barrier, line);
  barrier.bytes += bytes;
  if (barrier.bytes > MOST)
    report(BARRIER, barrier.at, 8, line, 0, "a phase of %lld bytes", static_cast<long long>(barrier.bytes));
  arrive(barrier, &machine.current->knows, line);
  tick(*machine.current);
  maybe_leave();
}

void ptx::mbarrier_try_wait_parity_shared_cta_b64(unsigned at, unsigned parity, unsigned& done) {
  const uint32_t line = LINE;
  Thread& self = *machine.current;
  Barrier& barrier = *barrier_at(at, line);
  use(barrier, line);
  if (parity > 1) report(BARRIER, barrier.at, 8, line, 0, "parity %u; it is 0 or 1", parity);
  maybe_leave();
  if (!passes(barrier.at, parity)) {
    self.barrier = barrier.at;
    self.parity = parity;
    wait(Waits::BARRIER, line);
  }
  if (barrier.phase) self.knows.join(barrier.arrived);  // of a fresh barrier the phase before never was
  done = 1;
}

void ptx::mbarrier_test_wait_parity_shared_cta_b64(unsigned at, unsigned parity, unsigned& done) {
  const uint32_t line = LINE;
  Barrier& barrier = *barrier_at(at, line);
  use(barrier, line);
  if (parity > 1) report(BARRIER, barrier.at, 8, line, 0, "parity %u; it is 0 or 1", parity);
  maybe_leave();
  done = passes(barrier.at, parity);
  if (done && barrier.phase) machine.current->knows.join(barrier.arrived);
}
