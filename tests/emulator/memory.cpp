// Accesses of threads: those that the compiler tells of, those of shared memory by address, and semaphores in global
// memory, which tell who acquires them what was released to them.
#include <cstring>

#include "cuda.h"
#include "shadow.h"

namespace {
constexpr unsigned EMPTY_WORD = 0xffffffffu;  // as kernels/cuda/preamble.py has it

void touch(const void* pointer, uint32_t bytes, bool write, uint32_t line, bool atomic = false) {
  const char* const at = static_cast<const char*>(pointer);
  const uint64_t inside = at - machine.shared;
  if (inside < machine.shared_bytes && inside + bytes <= machine.shared_bytes) {
    By by = by_thread(*machine.current, line);
    by.atomic = atomic;
    if (write) shadow.write(static_cast<uint32_t>(inside), bytes, by);
    else shadow.read(static_cast<uint32_t>(inside), bytes, by);
    return;
  }
  const Buffer* const buffer = buffer_of(at, bytes);
  if (buffer && buffer->watched) {
    const By by = by_thread(*machine.current, line);
    const uint32_t place = static_cast<uint32_t>(buffer->at + (at - buffer->begin));
    if (write) global_shadow.write(place, bytes, by);
    else global_shadow.read(place, bytes, by);
    return;
  }
  if (buffer && (buffer->written || !write)) return;
  for (const Dim3* known : {&threadIdx, &blockIdx, &blockDim, &gridDim})
    if (!write && at >= reinterpret_cast<const char*>(known) && at < reinterpret_cast<const char*>(known + 1)) return;
  report(BOUNDS, 0, 0, line, 0, "thread %u %s", machine.current->number,
         buffer ? "writes to an input" : write ? "writes outside of every tensor and of shared memory"
                                               : "reads outside of every tensor and of shared memory");
  give_up();
}

// A relaxed load of global memory, as of a word that is polled: another's ordinary store must come before it.
void look(const void* pointer, uint32_t bytes, uint32_t line) {
  const Buffer* const buffer = buffer_of(pointer, bytes);
  if (!buffer || !buffer->watched) return touch(pointer, bytes, false, line);
  By by = by_thread(*machine.current, line);
  by.atomic = true;
  const uint64_t inside = static_cast<const char*>(pointer) - buffer->begin;
  global_shadow.look(static_cast<uint32_t>(buffer->at + inside), bytes, by);
}

// ``bytes`` of shared memory by their address in the window.
char* shared_at(uint32_t window, uint32_t bytes, bool write, uint32_t line) {
  const uint32_t at = window - WINDOW;
  if (at % bytes || uint64_t(at) + bytes > machine.shared_bytes) {
    report(BOUNDS, at, bytes, line, 0, "thread %u accesses %u bytes unaligned or past the end of shared memory",
           machine.current->number, bytes);
    give_up();
  }
  touch(machine.shared + at, bytes, write, line);
  return machine.shared + at;
}

// Tagged words in global memory, which a launch may write and nobody watches: who wants one finds its number.
uint64_t* tagged(const void* at, bool write, uint32_t line) {
  const Buffer* const buffer = buffer_of(at, sizeof(uint64_t));
  if (!buffer || buffer->watched || !buffer->written) {
    report(BOUNDS, 0, 0, line, 0, "thread %u %s a word outside of those of the launch", machine.current->number,
           write ? "stores" : "loads");
    give_up();
  }
  return static_cast<uint64_t*>(const_cast<void*>(at));
}

void release(const void* at) {
  Thread& self = *machine.current;
  machine.released.try_emplace(at, machine.agents).first->second.join(self.knows);
  tick(self);
}

void acquire(const void* at) {
  const auto found = machine.released.find(at);
  if (found != machine.released.end()) machine.current->knows.join(found->second);
}
}  // namespace

const Buffer* buffer_of(const void* pointer, uint64_t bytes) {
  const char* const at = static_cast<const char*>(pointer);
  for (const Buffer& buffer : machine.buffers)
    if (at >= buffer.begin && at + bytes <= buffer.begin + buffer.bytes) return &buffer;
  return nullptr;
}

void check_read_only(const void* at, unsigned bytes) {
  const Buffer* const buffer = buffer_of(at, bytes);
  if (buffer && buffer->written)
    report(PROXY, 0, 0, LINE, 0, "thread %u reads what the launch writes as if it were read-only",
           machine.current->number);
}

void ptx::st_shared_b16(unsigned at, unsigned short value) { memcpy(shared_at(at, 2, true, LINE), &value, 2); }
void ptx::st_shared_b32(unsigned at, unsigned value) { memcpy(shared_at(at, 4, true, LINE), &value, 4); }
void ptx::st_shared_v2_b32(unsigned at, Words words) { memcpy(shared_at(at, 8, true, LINE), words.begin(), 8); }
void ptx::st_shared_v4_b32(unsigned at, Words words) { memcpy(shared_at(at, 16, true, LINE), words.begin(), 16); }
void ptx::ld_shared_b32(unsigned& value, unsigned at) { memcpy(&value, shared_at(at, 4, false, LINE), 4); }
void ptx::ld_shared_v4_b32(WordsOut words, unsigned at) {
  const char* const from = shared_at(at, 16, false, LINE);
  for (size_t i = 0; i < 4; ++i) memcpy(words.begin()[i], from + 4 * i, 4);
}

void ptx::ld_relaxed_gpu_global_b32(int& value, const void* at) { memcpy(&value, at, sizeof value); }
// A reader of words needs no order behind their stores, nor a store behind such reads, but both do of ordinary accesses.
void ptx::ld_relaxed_gpu_global_v4_f32(Registers values, const void* at) {
  const char* from = static_cast<const char*>(at);
  for (float* value : values) {
    look(from, sizeof *value, LINE);
    const unsigned bits = __atomic_load_n(reinterpret_cast<const unsigned*>(from), __ATOMIC_RELAXED);
    memcpy(value, &bits, sizeof bits);
    from += sizeof *value;
  }
}
// Each word is stored by itself, from the first or the last on; others may look in between.
static void store_words(const void* at, ptx::Words words, uint32_t line) {
  const uint32_t count = words.size(), turned = machine.random.below(2) * (count - 1);
  for (uint32_t i = 0; i < count; ++i) {
    unsigned* const to = static_cast<unsigned*>(const_cast<void*>(at)) + (i ^ turned);
    const unsigned value = static_cast<unsigned>(words.begin()[i ^ turned]);
    touch(to, sizeof value, true, line, true);
    if (__atomic_exchange_n(to, value, __ATOMIC_RELAXED) != EMPTY_WORD && value != EMPTY_WORD)
      report(RACE, 0, 0, line, 0, "thread %u stores a word over one that nobody has emptied", machine.current->number);
    maybe_leave();
  }
}
void ptx::st_relaxed_gpu_global_v2_b32(const void* at, Words words) { store_words(at, words, LINE); }
void ptx::st_relaxed_gpu_global_v4_b32(const void* at, Words words) { store_words(at, words, LINE); }
void ptx::ld_acquire_gpu_global_b32(int& value, const void* at) {
  memcpy(&value, at, sizeof value);
  acquire(at);
}
// Who asks for words again and again lets others run, who may be those that leave them.
static void ask() {
  if (++machine.current->asked % 16 == 0) __nanosleep(1);
}
void ptx::ld_relaxed_gpu_global_b64(unsigned long long& word, const void* at) {
  ask();
  word = __atomic_load_n(tagged(at, false, LINE), __ATOMIC_RELAXED);
}
void ptx::ld_relaxed_gpu_global_v2_b64(LongsOut words, const void* at) {
  ask();
  const uint64_t* from = tagged(at, false, LINE);
  for (unsigned long long* word : words) *word = __atomic_load_n(from++, __ATOMIC_RELAXED);
}
void ptx::st_relaxed_gpu_global_b64(const void* at, unsigned long long word) {
  __atomic_store_n(tagged(at, true, LINE), word, __ATOMIC_RELAXED);
}
void ptx::st_relaxed_gpu_global_v2_b64(const void* at, Longs words) {
  uint64_t* to = tagged(at, true, LINE);
  for (unsigned long long word : words) __atomic_store_n(to++, word, __ATOMIC_RELAXED);
}
void ptx::ld_acquire_gpu_global_b64(unsigned long long& value, const void* at) {
  value = __atomic_load_n(static_cast<const unsigned long long*>(at), __ATOMIC_SEQ_CST);
  acquire(at);
}
void ptx::st_release_gpu_global_b64(const void* at, unsigned long long value) {
  check_posted(LINE);
  release(at);
  __atomic_store_n(static_cast<unsigned long long*>(const_cast<void*>(at)), value, __ATOMIC_SEQ_CST);
  maybe_leave();
}
void ptx::atom_acq_rel_gpu_global_add_u32(unsigned& before, const void* at, int more) {
  check_posted(LINE);
  acquire(at);
  release(at);
  before = __atomic_fetch_add(static_cast<unsigned*>(const_cast<void*>(at)), static_cast<unsigned>(more), __ATOMIC_SEQ_CST);
  maybe_leave();
}
void ptx::red_release_gpu_global_add_s32(const void* at, int more) {
  check_posted(LINE);
  release(at);
  __atomic_fetch_add(static_cast<int*>(const_cast<void*>(at)), more, __ATOMIC_SEQ_CST);
  maybe_leave();
}
void ptx::atom_release_gpu_global_add_u32(unsigned& before, const void* at, unsigned more) {
  check_posted(LINE);
  release(at);
  before = __atomic_fetch_add(static_cast<unsigned*>(const_cast<void*>(at)), more, __ATOMIC_SEQ_CST);
  maybe_leave();
}
void ptx::atom_acq_rel_gpu_global_add_u64(unsigned long long& before, const void* at, unsigned long long more) {
  check_posted(LINE);
  acquire(at);
  release(at);
  before = __atomic_fetch_add(static_cast<unsigned long long*>(const_cast<void*>(at)), more, __ATOMIC_SEQ_CST);
  maybe_leave();
}

unsigned long long atomic_add(void* at, unsigned bytes, unsigned long long more) {
  touch(at, bytes, true, LINE, true);
  if (bytes == 8) return __atomic_fetch_add(static_cast<uint64_t*>(at), more, __ATOMIC_SEQ_CST);
  return __atomic_fetch_add(static_cast<uint32_t*>(at), static_cast<uint32_t>(more), __ATOMIC_SEQ_CST);
}
unsigned long long atomic_swap(void* at, unsigned bytes, unsigned long long expected, unsigned long long wanted) {
  touch(at, bytes, true, LINE);
  const auto swap = [wanted]<class T>(T* to, T old) {
    __atomic_compare_exchange_n(to, &old, static_cast<T>(wanted), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return old;
  };
  if (bytes == 8) return swap(static_cast<uint64_t*>(at), static_cast<uint64_t>(expected));
  return swap(static_cast<uint32_t*>(at), static_cast<uint32_t>(expected));
}

// What the compiler calls before each access (-fsanitize=thread); the library of that sanitizer is not linked. Most are
// of the thread's own stack.
#define HOOK(name, bytes, write)                      \
  void __tsan_##name(void* at) {                      \
    if (!on_stack(at)) touch(at, bytes, write, LINE); \
  }
#define HOOKS(bytes)                                                   \
  HOOK(read##bytes, bytes, false) HOOK(write##bytes, bytes, true)      \
  HOOK(unaligned_read##bytes, bytes, false) HOOK(unaligned_write##bytes, bytes, true)
extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* at, unsigned long bytes) {
  if (!on_stack(at)) touch(at, static_cast<uint32_t>(bytes), false, LINE);
}
void __tsan_write_range(void* at, unsigned long bytes) {
  if (!on_stack(at)) touch(at, static_cast<uint32_t>(bytes), true, LINE);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
}
