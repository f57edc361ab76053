// Split-K reduction of matmul tiles: partials of the parts of a tile in global memory, and the fix-up that adds them.
//
//   SerialFixup        the last part of a tile, in the plan's order, adds the partials of all others to its own
//   CooperativeFixup   each part reduces and stores its share of the columns, and takes that from all others; of the
//                      rows, where columns are scaled and rows are tokens (row_shares.cuh)
//
// Partials are float words that poll to a sentinel (sentinel.cuh): no part posts a semaphore for them, and consumers
// poll them while their last products run. The plan fixes who adds and in which order (that of k), so results repeat
// bit by bit. Each warpgroup has partials of its own; thread t has every 128th vector of 16 bytes from vector t on.
//
// Why a word holds a partial of this run: a part stores or loads partials after a stage that the dependent loader has
// filled. That loader has waited for the previous launch, which emptied all words, and for the item's own waits. Rows
// of the workspace are reused only after ops that have ended by then (megakernel/partials.py), whose words were empty
// before their tiles posted.
//
// A part that computes the norm of its rows has the sums of squares over its own k. They travel with its partials, as
// one more vector of each thread.
#pragma once
#include "accumulators.cuh"

// Registers of a thread for accumulators and loaded partials, 16 bytes a load.
constexpr int FIX_UP_REGISTERS = WARPGROUPS == 1 ? 144 : WARPGROUPS == 2 ? 136 : 104;
// Registers for partials that are loaded while products run; with held weights only one warpgroup has them.
constexpr int MOST_EARLY = WARPGROUPS > 2 ? 16 : HELD_REGISTERS > 100 ? 48 : 32;

// Base of both fix-ups: stores, polls and empties vectors of partials.
template <class Config> struct Partials {
  typedef Accumulators<Config> Acc;
  static constexpr int BLOCKS = Acc::BLOCKS;
  static constexpr bool NORMALISES = Acc::NORMALISES;
  typedef typename Acc::Squares Squares;

  // The thread's first vector, in a row of 128 vectors of the workspace.
  DEVICE static float4* vectors_of(const Launch& launch, long long row) {
    return reinterpret_cast<float4*>(launch.workspace) + row * 128 + threadIdx.x % 128;
  }
  DEVICE static void store_squares(float4* to, const Squares& squares) {
    if (NORMALISES) fill_words(to, squares[0][0], squares[0][1], squares[BLOCKS - 1][0], squares[BLOCKS - 1][1]);
  }
  DEVICE static void add_squares(Squares& squares, const float4& value) {
    squares[0][0] += value.x, squares[0][1] += value.y;
    if (BLOCKS > 1) squares[BLOCKS - 1][0] += value.z, squares[BLOCKS - 1][1] += value.w;
  }
  // Loads vectors once, without waiting for them. `at.has(n)`: whether vector n exists; `at(n)`: its address.
  template <int N, class At> DEVICE static void load(float4 (&values)[N], const At& at) {
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] = at.has(n) ? load_words(at(n)) : make_float4(0, 0, 0, 0);
  }
  // Polls loaded vectors until all have arrived, then empties their words for the next run.
  template <int N, class At>
  DEVICE static void await(const Launch& launch, const Item& item, float4 (&values)[N], const At& at) {
    if (!await_words(launch, values, at)) give_up(launch, item.number, ~item.split, item.parts - 1, 0);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < N; ++n)
      if (at.has(n)) empty_words(at(n));
  }
};

template <class Config> struct SerialFixup : Partials<Config> {
  typedef Partials<Config> Base;
  typedef Accumulators<Config> Acc;
  typedef typename Acc::Squares Squares;
  static constexpr int COUNT = Acc::COUNT;
  static constexpr bool NORMALISES = Acc::NORMALISES;
  static constexpr int VECTORS = COUNT / 4 + NORMALISES;  // of a thread and part, in the workspace
  // Partials of so many other parts are loaded at once.
  static constexpr int OTHERS = Config::PARTS_AT_ONCE - 1;
  // True if those are so few that they are loaded while the last products run.
  static constexpr bool EARLY = OTHERS > 0 && OTHERS* COUNT <= MOST_EARLY && !NORMALISES;
  typedef float4 Early[EARLY ? OTHERS * COUNT / 4 : 1];

  // True if this part adds the partials of all others.
  DEVICE static bool adds(const Item& item) { return item.parts > 1 && !(item.code & LEAVES_SUMS); }
  // The thread's partials of part `other` of those that the last part adds; of any other part its own are number 0.
  DEVICE static float4* partials_of(const Launch& launch, const Item& item, int other) {
    const long long row = (long long)item.slot + (other * WARPGROUPS + warpgroup()) * VECTORS;
    return Base::vectors_of(launch, row);
  }
  DEVICE static void store_partials(const Launch& launch, const Item& item, const typename Acc::Tile& accumulators,
                                    const Squares& squares) {
    const float (*const flat)[4] = reinterpret_cast<const float (*)[4]>(&accumulators[0][0][0]);
    float4* const to = partials_of(launch, item, 0);
    random_delay(launch, item, 2);
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) fill_words(to + i * 128, flat[i][0], flat[i][1], flat[i][2], flat[i][3]);
    Base::store_squares(to + COUNT / 4 * 128, squares);
  }
  // Addresses of vectors `vector` to `end` of the parts from `part` on, CHUNK vectors for each part.
  template <int CHUNK> struct Others {
    float4* first;
    int parts, vectors;
    DEVICE Others(const Launch& launch, const Item& item, int part, int vector, int end = COUNT / 4)
        : first(partials_of(launch, item, part) + vector * 128), parts(item.parts - 1 - part), vectors(end - vector) {}
    DEVICE bool has(int n) const { return n / CHUNK < parts && n % CHUNK < vectors; }
    DEVICE float4* operator()(int n) const { return first + (n / CHUNK * WARPGROUPS * VECTORS + n % CHUNK) * 128; }
  };
  template <int CHUNK>
  DEVICE static void add(float4 (&sum)[CHUNK], const float4 (&values)[OTHERS > 0 ? OTHERS * CHUNK : 1]) {
#pragma unroll
    for (int t = 0; t < OTHERS; ++t)
#pragma unroll
      for (int j = 0; j < CHUNK; ++j) {
        const float4 value = values[t * CHUNK + j];
        sum[j].x += value.x, sum[j].y += value.y, sum[j].z += value.z, sum[j].w += value.w;
      }
  }
  // Loads partials while products run, where there are registers for them.
  DEVICE static void load_early(const Launch& launch, const Item& item, Early& early) {
    if constexpr (EARLY)
      if (adds(item)) Base::load(early, Others<COUNT / 4>(launch, item, 0, 0));
  }
  // Adds the partials of all other parts: as many vectors of a thread at a time as fit its registers.
  DEVICE static void reduce(const Launch& launch, const Item& item, typename Acc::Tile& accumulators, Early& early,
                            Squares& squares) {
    float (*const flat)[4] = reinterpret_cast<float (*)[4]>(&accumulators[0][0][0]);
    constexpr int FIT = (FIX_UP_REGISTERS - NORMALISES * 32 - COUNT) / (4 * (OTHERS + 1)), MOST = FIT > 1 ? FIT : 1;
    constexpr int TRIPS = (COUNT / 4 + MOST - 1) / MOST, CHUNK = EARLY ? COUNT / 4 : (COUNT / 4 + TRIPS - 1) / TRIPS;
#pragma unroll
    for (int i = 0; i < COUNT / 4; i += CHUNK) {
      float4 sum[CHUNK], values[OTHERS > 0 ? OTHERS * CHUNK : 1];
#pragma unroll
      for (int j = 0; j < CHUNK; ++j) sum[j] = make_float4(0, 0, 0, 0);
      if constexpr (EARLY) {
        Base::await(launch, item, early, Others<CHUNK>(launch, item, 0, 0));
        add(sum, early);
      }
#pragma unroll 1
      for (int part = EARLY ? OTHERS : 0; part < item.parts - 1; part += OTHERS) {
        const Others<CHUNK> at(launch, item, part, i);
        Base::load(values, at);
        Base::await(launch, item, values, at);
        add(sum, values);
      }
#pragma unroll
      for (int j = 0; j < CHUNK && i + j < COUNT / 4; ++j) {
        flat[i + j][0] += sum[j].x, flat[i + j][1] += sum[j].y;
        flat[i + j][2] += sum[j].z, flat[i + j][3] += sum[j].w;
      }
    }
    if constexpr (NORMALISES) {
      float4 values[OTHERS > 0 ? OTHERS : 1];
#pragma unroll 1
      for (int part = 0; part < item.parts - 1; part += OTHERS) {
        const Others<1> at(launch, item, part, COUNT / 4, VECTORS);
        Base::load(values, at);
        Base::await(launch, item, values, at);
#pragma unroll
        for (int n = 0; n < OTHERS; ++n) Base::add_squares(squares, values[n]);
      }
    }
  }
};

// A share is GROUPS groups of 8 columns; where they do not divide evenly the first MORE shares have one group more than
// the others, which may have none. For each share the workspace has the partials of the other parts, one part after
// another.
template <class Config> struct CooperativeFixup : Partials<Config> {
  typedef Partials<Config> Base;
  typedef Accumulators<Config> Acc;
  typedef typename Acc::Squares Squares;
  static constexpr int GATES = Acc::GATES, BLOCKS = Acc::BLOCKS, WIDTH = Acc::WIDTH, SHARES = Config::SHARES;
  static constexpr bool NORMALISES = Acc::NORMALISES;
  static constexpr int MORE = WIDTH / 8 % SHARES, GROUPS = WIDTH / 8 / SHARES + (MORE > 0);
  static constexpr int COLUMNS = GROUPS * 8, PIECES = GATES * BLOCKS * GROUPS;  // of a share; in vectors of a thread
  static constexpr int VECTORS = PIECES + NORMALISES;  // of a thread, part and share, in the workspace
  typedef typename Acc::template Columns<COLUMNS> Share;

  DEVICE static int groups_of(int share) { return MORE ? GROUPS - (share >= MORE) : GROUPS; }
  DEVICE static int first_group(int share) { return MORE ? share * GROUPS - max(share - MORE, 0) : share * GROUPS; }
  // True if a column, counted from the first of the part's share, is in it: a narrower share ends earlier.
  DEVICE static bool has_column(const Item& item, int column) { return MORE == 0 || column < groups_of(item.part) * 8; }
  // The thread's partials of a share, from part `other` of those that do not own it.
  DEVICE static float4* partials_of(const Launch& launch, const Item& item, int share, int other) {
    const long long row = (long long)item.slot + ((share * (SHARES - 1) + other) * WARPGROUPS + warpgroup()) * VECTORS;
    return Base::vectors_of(launch, row);
  }
  // Addresses of the partials of the part's own share, from all other parts.
  struct Others {
    float4* first;
    int columns;
    DEVICE Others(const Launch& launch, const Item& item)
        : first(partials_of(launch, item, item.part, 0)), columns(groups_of(item.part) * 8) {}
    DEVICE bool has(int n) const { return MORE == 0 || n % VECTORS >= PIECES || n % VECTORS % GROUPS * 8 < columns; }
    DEVICE float4* operator()(int n) const { return first + (n / VECTORS * WARPGROUPS * VECTORS + n % VECTORS) * 128; }
  };
  // Stores partials of the shares of all other parts; the part's own share goes to `own`.
  DEVICE static void store_partials(const Launch& launch, const Item& item, const typename Acc::Tile& accumulators,
                                    Share& own, const Squares& squares) {
    random_delay(launch, item, 2);
#pragma unroll
    for (int share = 0; share < SHARES; ++share) {
      float4* const to = partials_of(launch, item, share, item.part - (item.part > share));
#pragma unroll
      for (int n = 0; n < PIECES; ++n) {
        const int b = n / GROUPS % BLOCKS, from = (first_group(share) + n % GROUPS) * 4;
        if (n % GROUPS >= groups_of(share)) continue;
        const float* const piece = &accumulators[n / GROUPS / BLOCKS][b][from];
        float* const own_piece = &own[n / GROUPS / BLOCKS][b][n % GROUPS * 4];
        if (share == item.part) {
#pragma unroll
          for (int t = 0; t < 4; ++t) own_piece[t] = piece[t];
        } else {
          fill_words(to + n * 128, piece[0], piece[1], piece[2], piece[3]);
        }
      }
      if (share != item.part) Base::store_squares(to + PIECES * 128, squares);
    }
  }
  // Adds the partials of all other parts to the part's own share.
  DEVICE static void reduce(const Launch& launch, const Item& item, Share& own, Squares& squares) {
    float4 values[(SHARES - 1) * VECTORS];
    const Others at(launch, item);
    Base::load(values, at);
    Base::await(launch, item, values, at);
#pragma unroll
    for (int n = 0; n < PIECES; ++n) {
      float4 sum = values[n];
#pragma unroll
      for (int other = 1; other < SHARES - 1; ++other) {
        const float4 value = values[other * VECTORS + n];
        sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
      }
      float* const own_piece = &own[n / GROUPS / BLOCKS][n / GROUPS % BLOCKS][n % GROUPS * 4];
      own_piece[0] += sum.x, own_piece[1] += sum.y, own_piece[2] += sum.z, own_piece[3] += sum.w;
    }
    if constexpr (NORMALISES)
#pragma unroll
      for (int other = 0; other < SHARES - 1; ++other) Base::add_squares(squares, values[other * VECTORS + PIECES]);
  }
};
