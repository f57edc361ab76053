// Sampling by the Gumbel-max trick: the largest of logits / temperature + Gumbel noise is a sample of their softmax.
// Noise comes from Philox 4x32-10 by column, position and key (kernels/sample/philox.py), so a sample can be repeated.
// Logits below `least` are skipped; at temperature 0 the largest logit is taken. A tile is BN columns of a row.
#pragma once
#include "segments.cuh"
#include "../argmax/first.cuh"
#include "generated/arguments.cuh"

// Four words of a Philox counter, and of its output.
struct PhiloxWords {
  unsigned word[4];
};
DEVICE PhiloxWords philox(PhiloxWords counter, unsigned seed, unsigned sequence) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = 0xd2511f53ull * counter.word[0], second = 0xcd9e8d57ull * counter.word[2];
    counter = PhiloxWords{{(unsigned)(second >> 32) ^ counter.word[1] ^ seed, (unsigned)second,
                           (unsigned)(first >> 32) ^ counter.word[3] ^ sequence, (unsigned)first}};
    seed += 0x9e3779b9u;
    sequence += 0xbb67ae85u;
  }
  return counter;
}
// Gumbel noise -log(E) with E = -log(1 - u), u uniform; by the series of E where 1 - u would lose bits of u.
DEVICE float noise_of(unsigned word) {
  const float u = fminf((float)word * 0x1p-32f + 0x1p-33f, 1.0f - 0x1p-24f);
  const float exponential = u < 0x1p-8f ? u * (1.0f + u * (0.5f + u * (1.0f / 3.0f))) : -__logf(1.0f - u);
  return -__logf(exponential);
}
DEVICE void noisy_tile(const Tile& tile, const Arguments& a) {
  const int first = tile.j * BN, end = min(first + BN, a.N);
  const auto* const row = a.x + (long long)tile.i * a.N;
  const float temperature = a.temperature[tile.i], inverse = inverse_of(temperature), least = a.least[tile.i];
  const unsigned position = a.position[tile.i], seed = a.key[2 * tile.i], sequence = a.key[2 * tile.i + 1];
  Candidate best = {lowest(), end - 1};
#pragma unroll 2
  for (int column = first + 4 * thread(); column < end; column += 4 * THREADS) {
    float value[4];
    bool any = false;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      value[e] = column + e < end ? widened(row[column + e]) : lowest();
      any |= value[e] >= least && value[e] > lowest();
    }
    if (!any) continue;
    PhiloxWords words = {};
    if (temperature > 0.0f) words = philox(PhiloxWords{{(unsigned)column / 4, position, 0, 0}}, seed, sequence);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float score = temperature > 0.0f ? value[e] * inverse + noise_of(words.word[e]) : value[e];
      if (value[e] >= least && score > best.value) best = Candidate{score, column + e};
    }
  }
  store_first(tile, a, best);
}
