// Products of a warpgroup, 64 x 16 by 16 x n, out of shared memory with the 128-byte swizzle (PTX ISA, "Asynchronous
// warpgroup level matrix instructions": descriptors, and fragments A and D of m64nNk16). Each thread computes what it
// holds; that is poison until the wait, and shared memory is read at the commit or at the wait.
//
// A transposed second operand lies along its columns: 64 of them are a line of 128 bytes, lines of k follow each other by
// eights, and further columns stand the "leading dimension byte offset" away.
#include <cmath>
#include <cstring>

#include "cuda.h"
#include "shadow.h"

namespace {
// 16 elements along k of one row: two pieces of 16 bytes.
struct Row {
  uint32_t at[2];
};

Row row(uint64_t descriptor, uint32_t r) {
  const uint32_t first = (descriptor & 0x3fff) << 4, between = (descriptor >> 32 & 0x3fff) << 4;
  const uint32_t at = first + r / 8 * between + r % 8 * 128;
  return {{swizzled_by_128(at) - WINDOW, swizzled_by_128(at + 16) - WINDOW}};
}

// Where 8 columns of a transposed operand lie, from a multiple of 8, for one k of 16.
uint32_t piece(uint64_t descriptor, uint32_t k, uint32_t column) {
  const uint32_t first = (descriptor & 0x3fff) << 4, across = (descriptor >> 16 & 0x3fff) << 4;
  const uint32_t between = (descriptor >> 32 & 0x3fff) << 4;
  return swizzled_by_128(first + column / 64 * across + k / 8 * between + k % 8 * 128 + column % 64 * 2) - WINDOW;
}

float value_of(unsigned bits, bool half) {
  return half ? ptx::from_half(static_cast<unsigned short>(bits)) : __uint_as_float(bits << 16);
}

float element(uint32_t at, bool half) {
  unsigned short bits;
  memcpy(&bits, machine.shared + at, 2);
  return value_of(bits, half);
}

void elements(float (&out)[16], const Row& row, bool half) {
  for (int k = 0; k < 16; ++k) out[k] = element(row.at[k / 8] + k % 8 * 2, half);
}

void compute(Thread& self, Product& product) {
  Sum& sum = *std::find_if(self.sums.begin(), self.sums.end(), [&](Sum& s) { return s.where[0] == product.sum[0]; });
  const uint32_t lane = self.number % 32, first = self.number / 32 % 4 * 16 + lane / 4;
  float a[2][16], b[16];
  for (uint32_t h = 0; h < 2; ++h)
    if (!product.left.empty()) std::copy_n(&product.left[16 * h], 16, a[h]);
    else if (first + 8 * h < product.loaded) elements(a[h], row(product.a, first + 8 * h), product.half);
    else std::fill_n(a[h], 16, NAN);
  for (int p = 0; p < product.n / 8; ++p)
    for (uint32_t j = 0; j < 2; ++j) {
      const uint32_t column = lane % 4 * 2 + j;
      if (product.transposed)
        for (uint32_t k = 0; k < 16; ++k) b[k] = element(piece(product.b, k, p * 8) + column * 2, product.half);
      else elements(b, row(product.b, p * 8 + column), product.half);
      for (uint32_t h = 0; h < 2; ++h) {
        float& into = sum.values[p * 4 + h * 2 + j];
        if (!product.adds) into = 0.0f;
        for (int k = 0; k < 16; ++k) into += a[h][k] * b[k];
      }
    }
  product.computed = true;
}

void compute_up_to(Thread& self, uint32_t group) {
  for (Product& product : self.products)
    if (product.group <= group && !product.computed) compute(self, product);
}

// Rows of a first operand that are loaded, of 64; what lies behind may be anything.
uint32_t loaded_of(const Thread& self, const float* sum, uint64_t descriptor, int n) {
  const Promises& promises = machine.promises;
  if (promises.begin == promises.end) return 64;
  const int64_t sums_before = self.sums.empty() ? 0 : sum - self.sums[0].where[0];
  const uint32_t block = static_cast<uint32_t>(sums_before / (n / 2) % promises.blocks);
  const uint32_t before = (self.number / 128 * promises.blocks + block) * 64;
  const uint32_t first = ((descriptor & 0x3fff) << 4) - before * 128 - WINDOW;
  if (first < promises.begin || first >= promises.end) return 64;
  return std::clamp(promises.rows, before, before + 64) - before;
}

void read(uint32_t at, const By& by) {
  if (uint64_t(at) + 16 > machine.shared_bytes) {
    report(BOUNDS, at, 16, by.line, 0, "a product reads past the end of shared memory");
    give_up();
  }
}

void read(uint64_t descriptor, uint32_t first, uint32_t rows, uint32_t loaded, const By& by) {
  for (uint32_t r = first; r < first + rows; ++r)
    for (const uint32_t at : row(descriptor, r).at) {
      read(at, by);
      if (r < loaded) shadow.read(at, 16, by);
    }
}

void read_transposed(uint64_t descriptor, uint32_t columns, const By& by) {
  for (uint32_t k = 0; k < 16; ++k)
    for (uint32_t column = 0; column < columns; column += 8) {
      read(piece(descriptor, k, column), by);
      shadow.read(piece(descriptor, k, column), 16, by);
    }
}

// What a thread is about to multiply.
By begin(ptx::Registers sum, bool swizzled, int n, uint32_t line) {
  Thread& self = *machine.current;
  if (!self.registers_fenced) report(DIVERGED, 0, 0, line, 0, "a product without wgmma.fence before it");
  if (!swizzled || sum.size() * 2 != static_cast<size_t>(n)) {
    report(SETUP, 0, 0, line, 0, "a product of operands without the 128-byte swizzle");
    give_up();
  }
  return {machine.products_of(self.number / 32), self.product_groups, line, &self.knows, true};
}

void take(Product product) {
  Thread& self = *machine.current;
  const auto same = [&](const Sum& s) { return s.where[0] == product.sum[0]; };
  if (std::none_of(self.sums.begin(), self.sums.end(), same)) {
    self.sums.push_back({product.sum, {}});
    for (float* value : product.sum) {
      self.sums.back().values.push_back(*value);
      *value = NAN;
    }
  }
  self.products.push_back(std::move(product));
}
}  // namespace

void ptx::product(Registers sum, unsigned long long a, unsigned long long b, int n, bool half, bool adds) {
  Thread& self = *machine.current;
  const By by = begin(sum, a >> 62 == 1 && b >> 62 == 1, n, LINE);
  const uint32_t loaded = loaded_of(self, *sum.begin(), a, n), warp = self.number / 32;
  if (self.number % 32 == 0) {  // for the warp
    read(a, warp % 4 * 16, 16, loaded, by);
    read(b, 0, n, n, by);
  }
  take({sum, a, b, n, half, loaded, self.product_groups, adds});
}

void ptx::product(Registers sum, Pairs a, unsigned long long b, int n, bool half, bool adds, bool transposed) {
  Thread& self = *machine.current;
  const By by = begin(sum, b >> 62 == 1 && a.size() == 4, n, LINE);
  if (self.number % 32 == 0) transposed ? read_transposed(b, n, by) : read(b, 0, n, n, by);
  Product product{sum, 0, b, n, half, 64, self.product_groups, adds, transposed, std::vector<float>(32)};
  // Of a row, lane ``l`` of four holds elements 2 l, 2 l + 1, 2 l + 8 and 2 l + 9; of the row 8 below too.
  const unsigned* const mine = a.begin();
  for (int l = 0; l < 4; ++l)
    for (int h = 0; h < 2; ++h) {
      const auto both = static_cast<unsigned long long>(mine[2 + h]) << 32 | mine[h];
      const unsigned long long theirs = shuffle(0xffffffff, both, static_cast<int>(self.number % 32 / 4 * 4) + l);
      for (int e = 0; e < 4; ++e)
        product.left[16 * h + l * 2 + e / 2 * 8 + e % 2] = value_of(theirs >> e * 16 & 0xffff, half);
    }
  take(std::move(product));
}

void ptx::wgmma_fence_sync_aligned() {
  machine.current->registers_fenced = true;
  meet_lanes("wgmma.fence", LINE);
}

void ptx::wgmma_commit_group_sync_aligned() {
  Thread& self = *machine.current;
  if (machine.random.once_in(2)) compute_up_to(self, self.product_groups);
  ++self.product_groups;
  maybe_leave();
}

void ptx::wgmma_wait_group_sync_aligned(int pending) {
  Thread& self = *machine.current;
  if (self.product_groups <= static_cast<uint32_t>(pending) + 1) return;
  const uint32_t line = LINE, ended = self.product_groups - 1 - pending;
  compute_up_to(self, ended);
  meet_lanes("wgmma.wait_group", line);  // the products of a warp end together
  std::erase_if(self.products, [&](const Product& product) { return product.group <= ended; });
  std::erase_if(self.sums, [&](const Sum& sum) {
    for (const Product& product : self.products)
      if (product.sum[0] == sum.where[0]) return false;
    for (size_t i = 0; i < sum.values.size(); ++i) *sum.where[i] = sum.values[i];
    return true;
  });
  uint32_t& known = self.knows.seen[machine.products_of(self.number / 32)];
  known = std::max(known, ended);
  self.registers_fenced = self.products.empty() ? false : self.registers_fenced;
}

float ptx::from_half(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(float(fraction), -24));
}

unsigned short ptx::to_half(float x) {
  const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (std::isnan(x)) return 0x7fff;
  if (x >= 65520.0f) return sign | 0x7c00;
  if (x < 0x1p-14f) return sign | static_cast<unsigned short>(std::nearbyint(x * 0x1p24f));
  int exponent;
  const float fraction = std::frexp(x, &exponent);  // in [0.5, 1)
  const int steps = static_cast<int>(std::nearbyint(fraction * 2048.0f));  // 1024 to 2048, which carries
  return sign | static_cast<unsigned short>(((exponent + 13) << 10) + steps);
}
