// Sampling by the Gumbel-max trick: the largest of logits / temperature + Gumbel noise is a sample of their softmax.
// Noise comes from Philox 4x32-10 by column, position and key (kernels/sample/philox.py), so a sample can be repeated.
// Logits below `least` are skipped; at temperature 0 the largest logit is taken, as by most_tile.cuh. A tile is BN
// columns of a row.
#pragma once
#include "segments.cuh"
#include "../argmax/most.cuh"
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
// Noise of a row's scores, and the least logit that has one.
struct Noise {
  float inverse, least;
  unsigned position, seed, sequence;
  // Looks for a larger score among neighbouring columns, of which the first is a multiple of 4.
  template <int COUNT> DEVICE void scan(Candidate& best, const float (&value)[COUNT], int column) const {
#pragma unroll
    for (int first = 0; first < COUNT; first += 4) {
      bool any = false;
#pragma unroll
      for (int e = first; e < first + 4; ++e) any |= value[e] >= least && value[e] > lowest();
      if (!any) continue;
      const PhiloxWords words = philox(PhiloxWords{{(unsigned)(column + first) / 4, position, 0, 0}}, seed, sequence);
#pragma unroll
      for (int e = first; e < first + 4; ++e) {
        const float score = value[e] * inverse + noise_of(words.word[e - first]);
        if (value[e] >= least && score > best.value) best = Candidate{score, column + e};
      }
    }
  }
};
constexpr int PIECES_AT_ONCE = 8;  // of a thread, in flight
template <class T> DEVICE Candidate sample_of(const T* row, int column, int end, const Noise& noise) {
  constexpr int E = Piece<T>::ELEMENTS;
  Candidate best = {lowest(), end - 1};
  if (is_aligned(row + column) && (end - column) % E == 0) {
#pragma unroll 1
    for (int first = column + thread() * E; first < end; first += PIECES_AT_ONCE * THREADS * E) {
      Elements<T> pieces[PIECES_AT_ONCE];
#pragma unroll
      for (int n = 0; n < PIECES_AT_ONCE; ++n) pieces[n] = piece_at(row + min(first + n * THREADS * E, end - E), true);
#pragma unroll 1
      for (int n = 0; n < PIECES_AT_ONCE && first + n * THREADS * E < end; ++n, advance(pieces)) {
        float value[E];
#pragma unroll
        for (int e = 0; e < E; ++e) value[e] = widened(pieces[0].items[e]);
        noise.scan(best, value, first + n * THREADS * E);
      }
    }
  } else {
#pragma unroll 1
    for (int first = column + 4 * thread(); first < end; first += 4 * THREADS) {
      float value[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) value[e] = first + e < end ? widened(row[first + e]) : lowest();
      noise.scan(best, value, first);
    }
  }
  return best;
}
DEVICE void noisy_tile(const Tile& tile, const Arguments& a) {
  const int column = tile.j * BN, end = min(column + BN, a.N);
  const auto* const row = a.x + (long long)tile.i * a.N;
  const float inverse = inverse_of(a.temperature[tile.i]);
  if (inverse > 0.0f) {
    const unsigned position = a.position[tile.i], seed = a.key[2 * tile.i], sequence = a.key[2 * tile.i + 1];
    store_first(tile, a, sample_of(row, column, end, Noise{inverse, a.least[tile.i], position, seed, sequence}));
  } else {
    store_first(tile, a, max_of(row, column, end));
  }
}
