#include "shadow.h"

#include <cstdio>

Shadow shadow{false, {}, {}, {}}, global_shadow{true, {}, {}, {}};

namespace {
// Who an agent is, in words; two buffers, since a message names two.
const char* described(uint32_t agent) {
  static char text[2][48];
  static int next = 0;
  char* const out = text[next ^= 1];
  const uint32_t threads = static_cast<uint32_t>(machine.threads.size());
  if (agent < threads) snprintf(out, sizeof text[0], "thread %u", agent);
  else if (agent < 2 * threads) snprintf(out, sizeof text[0], "a cp.async of thread %u", agent - threads);
  else if (agent < machine.channel(0)) snprintf(out, sizeof text[0], "a product of warp %u", agent - 2 * threads);
  else snprintf(out, sizeof text[0], "a bulk copy");
  return out;
}
}  // namespace

void Shadow::reset(uint64_t bytes) {
  cells.assign((bytes + GRAIN - 1) / GRAIN, Cell());
  readers.clear();
  places.assign(machine.agents, 0);
}

void Shadow::use(uint32_t at, const By& by, bool initialised) {
  Cell& cell = cells[at / GRAIN];
  if (cell.write.agent != NOBODY && (!after(cell.write, by) || !initialised))
    complain(cell.write, at / GRAIN, by, "initialisation", "use");
  keep(cell, by);
}

void Shadow::keep_more(Cell& cell, const By& by) {
  if (cell.more < 0) {
    cell.more = static_cast<int>(readers.size());
    readers.push_back({{}, std::vector<uint64_t>(machine.agents / 64 + 1)});
  }
  Readers& more = readers[cell.more];
  uint64_t& known = more.known[by.agent / 64];
  const uint64_t bit = uint64_t{1} << by.agent % 64;
  uint32_t& place = places[by.agent];
  if (!(known & bit)) {
    known |= bit;
    place = static_cast<uint32_t>(more.each.size());
    more.each.push_back({by.clock, by.agent, by.line});
    return;
  }
  if (place >= more.each.size() || more.each[place].agent != by.agent)
    for (place = 0; more.each[place].agent != by.agent;) ++place;
  more.each[place] = {by.clock, by.agent, by.line};
}

void Shadow::complain(const Access& before, uint32_t i, const By& by, const char* then, const char* now) {
  const bool ordered = after(before, by);
  report(ordered ? PROXY : RACE, global ? 0 : i * GRAIN, global ? 0 : GRAIN, before.line, by.line,
         ordered ? "%s by %s comes before %s by %s without a proxy fence%s" : "%s by %s and %s by %s are not ordered%s",
         then, described(before.agent), now, described(by.agent), global ? ", in global memory" : "");
}

void Shadow::unwritten(uint32_t i, const By& by) {
  report(UNWRITTEN, i * GRAIN, GRAIN, by.line, 0, "%s reads what nobody wrote", described(by.agent));
}

void Shadow::on_barrier(uint32_t i, const By& by, const char* what) {
  report(BARRIER, i * GRAIN, GRAIN, by.line, 0, "%s by %s inside of a barrier that is in use", what, described(by.agent));
}
