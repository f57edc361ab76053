// Products of a warpgroup, 64 x 16 by 16 x n, out of shared memory with the 128-byte swizzle (PTX ISA, "Asynchronous
// warpgroup level matrix instructions": descriptors, and fragment D of m64nNk16). Each thread computes what it holds;
// that is poison until the wait, and shared memory is read at the commit or at the wait.
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

void elements(float (&out)[16], const Row& row, bool half) {
  for (int k = 0; k < 16; ++k) {
    unsigned short bits;
    memcpy(&bits, machine.shared + row.at[k / 8] + k % 8 * 2, 2);
    out[k] = half ? ptx::from_half(bits) : __uint_as_float(unsigned(bits) << 16);
  }
}

void compute(Thread& self, Product& product) {
  Sum& sum = *std::find_if(self.sums.begin(), self.sums.end(), [&](Sum& s) { return s.where[0] == product.sum[0]; });
  const uint32_t lane = self.number % 32, first = self.number / 32 % 4 * 16 + lane / 4;
  float a[2][16], b[16];
  for (uint32_t h = 0; h < 2; ++h)
    if (first + 8 * h < product.loaded) elements(a[h], row(product.a, first + 8 * h), product.half);
    else std::fill_n(a[h], 16, NAN);
  for (int p = 0; p < product.n / 8; ++p)
    for (uint32_t j = 0; j < 2; ++j) {
      elements(b, row(product.b, p * 8 + lane % 4 * 2 + j), product.half);
      for (uint32_t h = 0; h < 2; ++h) {
        float& into = sum.values[p * 4 + h * 2 + j];
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

void read(uint64_t descriptor, uint32_t first, uint32_t rows, uint32_t loaded, const By& by) {
  for (uint32_t r = first; r < first + rows; ++r)
    for (const uint32_t at : row(descriptor, r).at) {
      if (uint64_t(at) + 16 > machine.shared_bytes) {
        report(BOUNDS, at, 16, by.line, 0, "a product reads past the end of shared memory");
        give_up();
      }
      if (r < loaded) shadow.read(at, 16, by);
    }
}
}  // namespace

void ptx::product(Registers sum, unsigned long long a, unsigned long long b, int n, bool half) {
  Thread& self = *machine.current;
  const uint32_t line = LINE, warp = self.number / 32;
  if (!self.registers_fenced) report(DIVERGED, 0, 0, line, 0, "a product without wgmma.fence before it");
  if ((a >> 62) != 1 || (b >> 62) != 1 || sum.size() * 2 != static_cast<size_t>(n)) {
    report(SETUP, 0, 0, line, 0, "a product of operands without the 128-byte swizzle");
    give_up();
  }
  const By by{machine.products_of(warp), self.product_groups, line, &self.knows, true};
  const uint32_t loaded = loaded_of(self, *sum.begin(), a, n);
  if (self.number % 32 == 0) {  // for the warp
    read(a, warp % 4 * 16, 16, loaded, by);
    read(b, 0, n, n, by);
  }
  Product product{sum, a, b, n, half, loaded, self.product_groups};
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
