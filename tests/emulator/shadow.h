// Who wrote and who read each piece of shared memory last, and whether the next access comes after that.
//
// After a write of the generic proxy, an access of the async proxy (a bulk copy, a product) needs a proxy fence in
// between; a write of the async proxy after reads of the generic one needs order alone (PTX ISA, 8.6, "Proxy-preserved
// base causality order"; what pipelines of CUTLASS rely on).
#pragma once
#include "machine.h"

constexpr uint32_t GRAIN = 2;  // bytes of a piece: those of the smallest element

struct Access {
  uint32_t clock, agent, line;
  bool atomic = false;
};

// Who makes an access: ``knows`` tells what came before it.
struct By {
  uint32_t agent, clock, line;
  const Knowledge* knows;
  bool async;  // through the async proxy
  bool atomic = false;  // a read and a write that others of its kind may precede in any order; the last is kept
};

struct Cell {
  Access write{0, NOBODY, 0}, read{0, NOBODY, 0};
  int more = -1;  // further readers
  bool barrier = false;
};

// Further readers of a cell, the last access of each.
struct Readers {
  std::vector<Access> each;
  std::vector<uint64_t> known;  // a bit for each agent
};

struct Shadow {
  const bool global;  // written before the launch, if not by it
  std::vector<Cell> cells;
  std::vector<Readers> readers;
  std::vector<uint32_t> places;  // of each agent, among the readers of the cell that it read last: cells are alike

  void reset(uint64_t bytes);
  void read(uint32_t at, uint32_t bytes, const By& by) {
    for (uint32_t i = at / GRAIN; i < (at + bytes + GRAIN - 1) / GRAIN; ++i) read_cell(cells[i], i, by);
  }
  void write(uint32_t at, uint32_t bytes, const By& by) {
    for (uint32_t i = at / GRAIN; i < (at + bytes + GRAIN - 1) / GRAIN; ++i) write_cell(cells[i], i, by);
  }
  // A relaxed load, of what is stored so or comes before it.
  void look(uint32_t at, uint32_t bytes, const By& by) {
    for (uint32_t i = at / GRAIN; i < (at + bytes + GRAIN - 1) / GRAIN; ++i) {
      const Access& write = cells[i].write;
      if (write.agent != NOBODY && !write.atomic && !after(write, by)) complain(write, i, by, "write", "read");
    }
  }
  // The use of a barrier: ``initialised`` if that is known to the proxy.
  void use(uint32_t at, const By& by, bool initialised);

  void read_cell(Cell& cell, uint32_t i, const By& by) {
    if (cell.barrier) on_barrier(i, by, "read");
    if (cell.write.agent == NOBODY) {
      if (!global && !may_be_anything(by)) unwritten(i, by);
    } else if (!after(cell.write, by) || (by.async && !fenced(cell.write, by))) {
      complain(cell.write, i, by, "write", "read");
    }
    keep(cell, by);
  }
  void write_cell(Cell& cell, uint32_t i, const By& by) {
    if (cell.barrier) on_barrier(i, by, "write");
    if (cell.write.agent != NOBODY && !(cell.write.atomic && by.atomic) &&
        (!after(cell.write, by) || (by.async && !fenced(cell.write, by))))
      complain(cell.write, i, by, "write", "write");
    if (cell.read.agent != NOBODY) {
      if (!after(cell.read, by)) complain(cell.read, i, by, "read", "write");
      if (cell.more >= 0) {
        Readers& more = readers[cell.more];
        for (const Access& other : more.each)
          if (!after(other, by)) complain(other, i, by, "read", "write");
        more.each.clear();
        std::fill(more.known.begin(), more.known.end(), 0);
      }
      cell.read.agent = NOBODY;
    }
    cell.write = {by.clock, by.agent, by.line, by.atomic};
  }

 private:
  static bool after(const Access& before, const By& by) { return by.knows->seen[before.agent] >= before.clock; }
  static bool may_be_anything(const By& by) {
    return machine.promises.smaller && by.agent >= machine.products_of(0) && by.agent < machine.channel(0);
  }
  // Of global memory the thread that makes a bulk copy has made the fence itself.
  bool fenced(const Access& before, const By& by) const {
    const std::vector<uint32_t>& fences = global ? machine.current->fenced_global : by.knows->fenced;
    return before.agent >= machine.products_of(0) || fences[before.agent] >= before.clock;
  }
  // Of a first reader and one that follows it the latter will do; a copy's end does not tell what came before the copy.
  void keep(Cell& cell, const By& by) {
    const bool thread = by.agent < machine.threads.size();
    if (cell.read.agent == NOBODY || cell.read.agent == by.agent || (thread && after(cell.read, by))) {
      cell.read = {by.clock, by.agent, by.line};
      return;
    }
    keep_more(cell, by);
  }
  void keep_more(Cell& cell, const By& by);
  void complain(const Access& before, uint32_t i, const By& by, const char* then, const char* now);
  void unwritten(uint32_t i, const By& by);
  void on_barrier(uint32_t i, const By& by, const char* what);
};
extern Shadow shadow, global_shadow;  // of shared memory, and of buffers that are watched

inline By by_thread(const Thread& thread, uint32_t line) {
  return {thread.number, thread.knows.seen[thread.number], line, &thread.knows, false};
}
